"""One job's plan within its budget, by `auto`: made anew, or from the plan in force.

Source: ours; docs/planner/auto.md and docs/planner/planning_again.md.
"""

from dataclasses import replace
from math import inf
from operator import attrgetter

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import DeviceSpec, Plan, Rewriting
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.attempts import HARD, SLOW, Planner
from tensile_db.scheduler.policies.drafts import GOOD_ENOUGH, Made, faster
from tensile_db.scheduler.policies.farther import GLANCE, THOROUGH, Effort, Farther
from tensile_db.scheduler.policies.stalled import (
    SEARCHED_OFTEN_OPS,
    SEARCHED_OPS,
    StalledSearch,
    begin_with_stalls,
    stalls,
)
from tensile_db.scheduler.request import Former, JobRequest
from tensile_db.scheduler.timeline import simulate_settled

#: Up to so many ops a job whose plan is not good enough is planned for less memory, too, for the next lower
#: multiple of this part of eager's peak, and one with large gradients is searched for in several orders.
_FEW_OPS = 800
_STEPS = 20
#: A job whose plan is slower than this times its ops alone is searched for, where nobody waits and it has the
#: link to itself.
_WORTH_A_SEARCH = 1.005
#: One whose plan is slower than this is not, but with large gradients: by then ops stall, and what search
#: looks for, choices whose copies hide, is rarely there.
_STALLS = 1.15
#: One of few ops whose plan is slower than this is looked at for recomputations that reach farther back.
_WORTH_GOING_FAR = 1.01
#: A search is gone on with from a plan that takes at most so many times the fastest one's time.
_NEAR = 1.02
#: The plan in force stays where it takes at most so many times its share of the ops' time, and the budget is
#: at most so many times what it holds.
_AS_GOOD = 1.01
_HARDLY_GROWN = 1.04
#: Beyond this a better plan is worth looking for, of few ops sooner, for what makes their plans fast is lost
#: where choices are made anew; and so it is for a hard job whose budget is so many times what it held.
_STILL_GOOD, _STILL_GOOD_OF_FEW = 1.08, 1.02
_MUCH_GROWN = 1.2
#: Another plan is worth taking up where it takes at most so many times the time of the one in force.
_WORTH_A_CHANGE = 0.995


def plan_within(
    job: JobRequest,
    rewriting: Rewriting,
    device: DeviceSpec,
    budget_nbytes: int,
    sharers: int,
    name: str = "auto",
    *,
    is_compared: bool = False,
) -> Plan:
    """Plan one of `sharers` jobs that share the link.

    rewriting: what its graph comes of; name: of the policy, whose own former plan is begun with; is_compared:
    the plan is only to show whether the job is faster with these splits than with others.
    """
    former = job.former
    if former is not None and name != "auto":
        own = former.plan.policy == name
        job = replace(job, former=replace(former, plan=replace(former.plan, policy="auto")) if own else None)
    if vanilla.peak_nbytes(job.graph) <= budget_nbytes:
        made = _left_as_it_is(job)
    else:
        replan = plan_better if job.improving else plan_again
        again = replan(job, rewriting, device, budget_nbytes, sharers)
        if again is not None:
            made = again
        elif job.at_once:
            made = plan_at_once(job, device, budget_nbytes, sharers)
        else:
            made = plan_one(job, device, budget_nbytes, sharers, is_compared=is_compared)
    if made.rewriting != rewriting or made.policy != name:
        made = replace(made, packed=rewriting.packed, splits=rewriting.splits, policy=name)
    return made


def _left_as_it_is(job: JobRequest) -> Plan:
    """Return the plan of a job that fits as eager PyTorch runs it."""
    return replace(vanilla.plan_one(job.graph), policy="auto")


def plan_one(
    request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int, *, is_compared: bool = False
) -> Plan:
    """Plan one of `sharers` jobs that share the link, within a budget from its bound to eager's peak.

    is_compared: see `plan_within`.
    """
    planner = Planner(request, device, budget_nbytes, sharers)
    best = planner.fastest()
    if best.period_ns <= GOOD_ENOUGH * planner.ops_ns:
        return best.plan
    # Others may be waiting for what a running job has too much.
    has_less = request.former is not None and request.former.guaranteed_peak_nbytes > budget_nbytes
    hurried = request.hurried or has_less or sharers > 1
    has_few_ops = len(request.graph.ops) <= _FEW_OPS
    within_less = _planner_within_less(request, device, budget_nbytes, sharers) if has_few_ops else None
    less: Made | None = None
    if within_less is not None:
        less = within_less.fastest()
        # To search in several orders once more would take as long as all the rest.
        if not planner.orders.has_large_gradients:
            less = _searched(within_less, less, hurried=hurried)
        best = faster(best, less)
    best = _searched(planner, best, hurried=hurried)
    if hurried:
        return best.plan
    if has_few_ops:
        best = _with_farther_recomputations(planner, best, GLANCE if is_compared else THOROUGH)
    found = begin_with_stalls(planner, best)
    fastest = min(found, key=_period_of).best
    if _recomputes_much(planner, fastest):
        stalled = _likeliest_stalled(planner, fastest)
        if stalled is not None:
            found += begin_with_stalls(planner, stalled)
        if not has_few_ops:
            within_less = _planner_within_less(request, device, budget_nbytes, sharers)
            if within_less is not None:
                less = _searched(within_less, within_less.fastest(), hurried=False)
    if within_less is not None and less is not None and less is not best and less.may_beat(fastest):
        found += begin_with_stalls(within_less, less)
    fastest_ns = min(search.best.period_ns for search in found)
    # Where one begins better, it nearly always ends better, too; but one that has ended already does not.
    going = [search for search in found if not search.is_over and search.best.period_ns <= _NEAR * fastest_ns]
    if going and not is_compared:
        min(going, key=_period_of).go_on()
    return min(found, key=_period_of).best.plan


def _period_of(search: StalledSearch) -> int:
    return search.best.period_ns


def _planner_within_less(
    request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int
) -> Planner | None:
    """Return the planner of a job within less memory; None where that does not do.

    Choices are greedy; what is found for less memory may be faster, and fits.
    """
    step_nbytes = -(-vanilla.peak_nbytes(request.graph) // _STEPS)
    less_nbytes = (budget_nbytes - 1) // step_nbytes * step_nbytes
    if less_nbytes < lower_bound_peak_nbytes(request.graph):
        return None
    return Planner(request, device, less_nbytes, sharers)


def _recomputes_much(planner: Planner, best: Made) -> bool:
    """Whether a plan is slow though nothing in it stalls: one that stalls may be faster once relieved."""
    is_slow = len(best.plan.order) <= SEARCHED_OFTEN_OPS and best.period_ns > HARD * planner.ops_ns
    return is_slow and best.draft is not None and not stalls(planner, best)


def _likeliest_stalled(planner: Planner, best: Made) -> Made | None:
    """Return the fastest plan tried that stalls and could beat the best one once it has fewer stalls."""
    likely = [made for made in planner.tried if made.may_beat(best) and stalls(planner, made)]
    return min(likely, key=attrgetter("period_ns"), default=None)


def _searched(planner: Planner, best: Made, *, hurried: bool) -> Made:
    """Return the best plan, or a faster one that local search finds, where it is worth its time."""
    if not planner.device.duplex:
        # Courses have a channel each way.
        return best
    ops, is_slow = len(best.plan.order), best.period_ns > _WORTH_A_SEARCH * planner.ops_ns
    if ops <= _FEW_OPS and is_slow and planner.orders.has_large_gradients:
        best = best if hurried else planner.searches.better(best)
        found = planner.searches.at_once()
        return best if found is None else faster(best, found)
    surely_stalls = best.period_ns > _STALLS * planner.ops_ns
    if ops <= SEARCHED_OPS and is_slow and not surely_stalls and not hurried:
        return planner.searches.better_in_order(best)
    return best


def _with_farther_recomputations(planner: Planner, best: Made, effort: Effort) -> Made:
    """Return the best plan, or a faster one by recomputations that reach farther back, where worth it."""
    is_slow = best.period_ns > _WORTH_GOING_FAR * planner.ops_ns
    if not is_slow or not planner.device.duplex or best.draft is None:
        return best
    return Farther(planner.drafter, planner.budget_nbytes, best).better(effort)


def plan_at_once(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan like `plan_one`, but with the first plan that meets the budget, or by swaps alone.

    Where that takes longer than the ops, it says so (`Plan.quick`), and `plan_better` may find another.
    """
    in_haste = request.at_once and request.in_haste
    planner = Planner(request, device, budget_nbytes, sharers, in_haste=in_haste)
    made = planner.drafted_at_once()
    if made is None or (made.period_ns > SLOW * planner.ops_ns and len(request.graph.ops) <= _FEW_OPS):
        made = faster(made, planner.by_swaps())
    is_slow = made.period_ns > GOOD_ENOUGH * planner.ops_ns
    return replace(made.plan, quick=is_slow, in_haste=in_haste)


def plan_again(
    request: JobRequest, rewriting: Rewriting, device: DeviceSpec, budget_nbytes: int, sharers: int
) -> Plan | None:
    """Return a plan that begins with the one in force, at once; None where there is none of this graph.

    rewriting: what its graph comes of.  The plan in force stays if it fits, takes hardly more of the ops'
    time than it did, and the budget has hardly grown.  Else choices are made anew in its order, once; where
    that is much slower than before, the plan says so (`Plan.quick`), and `plan_better` may find another.
    """
    former = _former_of(request, rewriting)
    if former is None:
        return None
    # What there is to choose from in such a plan is known for large tensors alone.
    in_haste = former.plan.in_haste
    held_nbytes = former.guaranteed_peak_nbytes
    planner = Planner(request, device, budget_nbytes, sharers, held_nbytes, in_haste=in_haste)
    best: Made | None = None
    grown = budget_nbytes / held_nbytes
    if grown > 1:
        # What it could not make use of was nothing to it.
        grown = max(1, budget_nbytes / max(former.guaranteed_peak_nbytes, former.looked_within_nbytes))
    # More memory gains a plan nothing that takes no longer than its ops.
    if grown >= 1 and (grown <= _HARDLY_GROWN or former.eor <= GOOD_ENOUGH):
        if former.timing.is_of(request.latencies_ns, device):
            # Its copies have the delays that they need.  `kept` begins without any, and may end with others.
            best = Made(plan=former.plan, period_ns=former.timing.period_ns)
        else:
            best = planner.drafter.kept(former.plan)
        if best is not None and best.period_ns <= max(GOOD_ENOUGH, _AS_GOOD * former.eor) * planner.ops_ns:
            return replace(best.plan, quick=former.quick, in_haste=in_haste)
    drafted = planner.drafted_once(former.plan, grown)
    if drafted is not None:
        best = faster(best, drafted)
    if planner.orders.has_large_gradients:
        # It may have been searched for, which takes longer than a job should wait here.
        known = planner.searches.from_choices_of(former.plan)
        best = best if known is None else faster(best, known)
    if best is None:
        # What meets every budget, whatever its time.
        return replace(planner.by_swaps().plan, quick=True)
    eor = best.period_ns / planner.ops_ns
    # What choosing once gives for less memory, a search may better; it has not been looked for there.
    may_gain = eor > (_WORTH_A_SEARCH if grown < 1 else HARD if grown > _MUCH_GROWN else inf)
    still_good = _STILL_GOOD_OF_FEW if len(request.graph.ops) <= _FEW_OPS else _STILL_GOOD
    is_quick = former.quick or may_gain or eor > still_good * former.eor
    return replace(best.plan, quick=is_quick, in_haste=in_haste)


def plan_better(
    request: JobRequest, rewriting: Rewriting, device: DeviceSpec, budget_nbytes: int, sharers: int
) -> Plan | None:
    """Return the plan in force, or one that is worth changing to; None where there is none of this graph.

    rewriting: what its graph comes of.  The job is planned as if for the first time; a plan in force that
    exceeds the budget does not stay.
    """
    former = _former_of(request, rewriting)
    if former is None:
        return None
    plan = plan_one(request, device, budget_nbytes, sharers)
    if former.guaranteed_peak_nbytes > budget_nbytes:
        return plan
    is_better = is_worth_a_change((request, plan), (request, former.plan), device)
    return plan if is_better else replace(former.plan, quick=False)


def is_worth_a_change(
    found: tuple[JobRequest, Plan], in_force: tuple[JobRequest, Plan], device: DeviceSpec
) -> bool:
    """Whether a plan saves enough of the time of the one in force; each with the job as it has it."""
    return period_ns(*found, device) <= _WORTH_A_CHANGE * period_ns(*in_force, device)


def period_ns(job: JobRequest, plan: Plan, device: DeviceSpec) -> int:
    """Return the time of an iteration by a plan of the job's graph, once it has settled."""
    return simulate_settled(job.graph, job.latencies_ns, plan, device)[1].period_ns


def _former_of(request: JobRequest, rewriting: Rewriting) -> Former | None:
    """Return the plan in force, where it is one of this graph, rewritten like this."""
    former = request.former
    if former is None or former.plan.policy != "auto" or former.plan.rewriting != rewriting:
        return None
    return former if sorted(former.plan.order) == [op.id for op in request.graph.ops] else None
