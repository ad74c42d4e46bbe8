"""The default: whatever meets the budget in the least time, of all that can be done to a job's tensors.

In this order: parameters are updated as soon as their gradients are complete (`choosing/order.py`); copies
that hide behind ops, optimizer state and parameters across iterations included, beginning with what cannot be
made again cheaply; recomputation just before each consumer, the cheapest by time and byte first
(`choosing/choices.py`); stalls last (`choosing/passive.py`).  Several such plans are made, which differ in
how updates are spread, how far recomputation may reach back and what is swapped first, and the fastest is
taken.  Where single tensors take a large share of the budget, choices are searched for
(`choosing/search.py`).  Only an op that alone needs more than the device has, or the job may have, is split.
A job of which everything fits is left as it is.

Source: ours; docs/planner.md, "auto".
"""

from collections.abc import Sequence
from dataclasses import replace

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import DeviceSpec, Plan, Split
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.attempts import GOOD_ENOUGH, HARD, Made, Planner, faster
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.shares import check_bounds, limit_of, share
from tensile_db.scheduler.splitting.choice import SPLIT_HINT
from tensile_db.scheduler.splitting.forced import forced_splits
from tensile_db.scheduler.splitting.latencies import as_split

#: A job of no more ops whose plan is not good enough is planned for less memory, too: for the next lower
#: multiple of this part of eager's peak.
_FEW_OPS = 600
_STEPS = 20
#: Search is worth its time for a plan slower than this times its ops alone, of a job that has the link to
#: itself.
_WORTH_A_SEARCH = 1.01
#: The plan in force stays where it takes at most so many times its share of the ops' time, and the budget is
#: at most so many times what it holds.
_AS_GOOD = 1.01
_HARDLY_GROWN = 1.04
#: Beyond this a job is planned anew, and so is a hard one whose budget is so many times what it held.
_STILL_GOOD = 1.08
_MUCH_GROWN = 1.2


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan jobs that share a device so that their guaranteed peaks together fit.

    Raises DoesNotFit, with the least memory that would do.
    """
    cut = [_cut_to_size(job, device) for job in jobs]
    graphs = [job.graph for job, _ in cut]
    limits = [limit_of(job, memory_nbytes) for job in jobs]
    check_bounds(graphs, limits, memory_nbytes)
    wanted = [vanilla.peak_nbytes(graph) for graph in graphs]
    budgets = share(graphs, wanted, limits, memory_nbytes)
    return tuple(
        plan_within(job, splits, device, budget, len(jobs))
        for (job, splits), budget in zip(cut, budgets, strict=True)
    )


def plan_within(
    job: JobRequest, splits: tuple[Split, ...], device: DeviceSpec, budget_nbytes: int, sharers: int
) -> Plan:
    """Plan one of `sharers` jobs that share the link; splits: what of its graph is split."""
    if vanilla.peak_nbytes(job.graph) <= budget_nbytes:
        made = _left_as_it_is(job)
    else:
        again = plan_again(job, splits, device, budget_nbytes, sharers)
        made = again or plan_one(job, device, budget_nbytes, sharers)
    return replace(made, splits=splits) if made.splits != splits else made


def _left_as_it_is(job: JobRequest) -> Plan:
    """Return the plan of a job that fits as eager PyTorch runs it."""
    return replace(vanilla.plan_one(job.graph), policy="auto")


def _cut_to_size(job: JobRequest, device: DeviceSpec) -> tuple[JobRequest, tuple[Split, ...]]:
    """Return the job with those ops in parts that alone need more than there is, and how they are split."""
    most_nbytes = limit_of(job, device.memory_nbytes)
    splits, needed_nbytes = forced_splits(job, device, most_nbytes)
    if needed_nbytes > most_nbytes:
        raise DoesNotFit(needed_nbytes=needed_nbytes, budget_nbytes=most_nbytes, hint=SPLIT_HINT)
    return as_split(job, splits, device), splits


def plan_one(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan one of `sharers` jobs that share the link, within a budget from its bound to eager's peak."""
    planner = Planner(request, device, budget_nbytes, sharers)
    best = planner.fastest()
    if best.period_ns <= GOOD_ENOUGH * planner.ops_ns or len(request.graph.ops) > _FEW_OPS:
        return best.plan
    step_nbytes = -(-vanilla.peak_nbytes(request.graph) // _STEPS)
    less_nbytes = (budget_nbytes - 1) // step_nbytes * step_nbytes
    if less_nbytes >= lower_bound_peak_nbytes(request.graph):
        # Choices are greedy; what was found for less memory may be faster, and fits.
        best = faster(best, Planner(request, device, less_nbytes, sharers).fastest())
    slow = best.period_ns > _WORTH_A_SEARCH * planner.ops_ns
    # Others may be waiting for what a running job has too much.
    has_less = request.former is not None and request.former.guaranteed_peak_nbytes > budget_nbytes
    hurried = request.hurried or has_less or sharers > 1
    if slow and planner.has_large_gradients and device.duplex and not hurried:
        searched = planner.searched(best.plan)
        best = best if searched is None else faster(best, searched)
    return best.plan


def plan_again(
    request: JobRequest, splits: tuple[Split, ...], device: DeviceSpec, budget_nbytes: int, sharers: int
) -> Plan | None:
    """Return a plan that begins with the one in force; None where the job is better planned anew.

    splits: what of its graph is split.  The plan in force stays if it fits, takes hardly more of the ops'
    time than it did, and the budget has hardly grown.  Else choices are made anew in its order, once.
    """
    former = request.former
    if former is None or former.plan.policy != "auto" or former.plan.splits != splits:
        return None
    planner = Planner(request, device, budget_nbytes, sharers)
    best: Made | None = None
    grown = budget_nbytes / former.guaranteed_peak_nbytes
    # More memory gains a plan nothing that takes no longer than its ops.
    if grown >= 1 and (grown <= _HARDLY_GROWN or former.eor <= GOOD_ENOUGH):
        best = planner.kept(former.plan)
        if best is not None and best.period_ns <= max(GOOD_ENOUGH, _AS_GOOD * former.eor) * planner.ops_ns:
            return best.plan
    drafted = planner.drafted_once(former.plan)
    if drafted is not None:
        best = faster(best, drafted)
    if planner.has_large_gradients:
        # It may have been searched for, which takes longer than a job should wait here.
        known = planner.with_choices_of(former.plan)
        best = best if known is None else faster(best, known)
    if best is None:
        return None
    eor = best.period_ns / planner.ops_ns
    may_gain = grown > _MUCH_GROWN and eor > HARD
    return None if may_gain or eor > _STILL_GOOD * former.eor else best.plan
