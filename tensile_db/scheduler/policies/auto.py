"""The default: whatever meets the budget in the least time, of all that can be done to a job's tensors.

In this order: parameters are updated as soon as their gradients are complete (`choosing/order.py`); copies
that hide behind ops, optimizer state and parameters across iterations included, beginning with what cannot be
made again cheaply; recomputation just before each consumer, the cheapest by time and byte first
(`choosing/choices.py`); stalls last (`choosing/passive.py`).  Several such plans are made, which differ in
how updates are spread, how far recomputation may reach back and what is swapped first, and the fastest is
taken.  Only an op that alone needs more than the device has, or the job may have, is split.  A job of which
everything fits is left as it is.

Source: ours; docs/planner.md, "auto".
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tensile_db.errors import DoesNotFit, InvalidPlan
from tensile_db.graph import OpId, TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.candidates import Candidate, find_candidates
from tensile_db.scheduler.choosing.choices import Choices
from tensile_db.scheduler.choosing.order import EarlyUpdates
from tensile_db.scheduler.choosing.passive import evict_to_budget
from tensile_db.scheduler.choosing.ways import OTHER_WAYS, USUAL_WAY, Way
from tensile_db.scheduler.plan import DeviceSpec, Plan, Release, Split, SwapIn
from tensile_db.scheduler.policies import tensile, vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble, await_later, return_earlier
from tensile_db.scheduler.settling.follow import follow_timeline
from tensile_db.scheduler.shares import check_bounds, limit_of, share
from tensile_db.scheduler.splitting.choice import SPLIT_HINT
from tensile_db.scheduler.splitting.forced import forced_splits
from tensile_db.scheduler.splitting.latencies import as_split
from tensile_db.scheduler.timeline import Timeline, simulate_settled

#: Of a job with so many ops another way is tried; of one with half as many, two.
_EFFORT_OPS = 4000
#: A plan slower than this times its ops alone is worth trying to beat.
_GOOD_ENOUGH = 1.001
#: A job slower than this times its ops alone is worth trying two other ways, whatever its size.
_HARD = 1.1
#: A job of no more ops whose plan is not good enough is planned for less memory, too: for the next lower
#: multiple of this part of eager's peak.
_FEW_OPS = 600
_STEPS = 20
#: A gradient of this share of the budget is large.
_LARGE_GRADIENT = 0.05
#: How much later large gradients are made where nobody waits for them, as a share of the time that is left.
_LATE = (0.1, 0.2, 0.3)
#: The plan in force stays where it takes at most so many times its share of the ops' time, and the budget is
#: at most so many times what it holds.
_AS_GOOD = 1.01
_HARDLY_GROWN = 1.04
#: Beyond this a job is planned anew, and so is a hard one whose budget is so many times what it held.
_STILL_GOOD = 1.08
_MUCH_GROWN = 1.2
#: Tensors below this share of the budget stay.
_LEAST_SHARE = 1 / 4000
#: A plan is made again with the stalls of the one before in its timeline, at most so often, and as long as
#: that saves more than this share of the time.
_ROUNDS = 3
_WORTH_A_ROUND = 0.005


_Candidates = tuple[Mapping[Gap, Candidate], dict[TensorId, list[int]], set[TensorId]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A plan that meets the budget, and the time of an iteration by it."""

    plan: Plan
    period_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """What is chosen for one order of the ops, before its copies are put in step with their timeline."""

    residency: Residency
    link: Link
    way: Way
    #: Whether no op waits for a copy, as far as can be told yet.
    hides: bool
    #: The time of all ops and recomputations.
    least_ns: int

    def may_beat(self, made: _Made | None) -> bool:
        """Return whether its plan could be faster: it takes no less time than its ops do."""
        return made is None or self.least_ns < made.period_ns


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
    planner = _Planner(request, device, budget_nbytes, sharers)
    best = planner.fastest()
    step_nbytes = -(-vanilla.peak_nbytes(request.graph) // _STEPS)
    less_nbytes = (budget_nbytes - 1) // step_nbytes * step_nbytes
    slow = best.period_ns > _GOOD_ENOUGH * planner.ops_ns
    if slow and len(request.graph.ops) <= _FEW_OPS and less_nbytes >= lower_bound_peak_nbytes(request.graph):
        # Choices are greedy; what was found for less memory may be faster, and fits.
        best = _faster(best, _Planner(request, device, less_nbytes, sharers).fastest())
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
    planner = _Planner(request, device, budget_nbytes, sharers)
    best: _Made | None = None
    grown = budget_nbytes / former.guaranteed_peak_nbytes
    # More memory gains a plan nothing that takes no longer than its ops.
    if grown >= 1 and (grown <= _HARDLY_GROWN or former.eor <= _GOOD_ENOUGH):
        best = planner.kept(former.plan)
        if best is not None and best.period_ns <= max(_GOOD_ENOUGH, _AS_GOOD * former.eor) * planner.ops_ns:
            return best.plan
    drafted = planner.drafted_once(former.plan)
    if drafted is not None:
        best = _faster(best, drafted)
    if best is None:
        return None
    eor = best.period_ns / planner.ops_ns
    may_gain = grown > _MUCH_GROWN and eor > _HARD
    return None if may_gain or eor > _STILL_GOOD * former.eor else best.plan


def _faster(known: _Made | None, made: _Made) -> _Made:
    """Return the faster of two plans; the one known before where both take as long."""
    return made if known is None or made.period_ns < known.period_ns else known


class _Planner:
    """Makes plans of one job within one budget."""

    def __init__(self, request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> None:
        self._request = request
        self._device = device
        self._budget_nbytes = budget_nbytes
        self._sharers = sharers
        self._least_nbytes = max(1, int(budget_nbytes * _LEAST_SHARE))
        #: By order and reach: candidates, where they need tensors, and what they pin.
        self._candidates: dict[tuple[tuple[OpId, ...], float], _Candidates] = {}
        #: The time of the ops alone.
        self.ops_ns = sum(request.latencies_ns)

    def kept(self, plan: Plan) -> _Made | None:
        """Return the plan, its copies back as early as their turn comes; None if it is of another graph."""
        if sorted(plan.order) != [op.id for op in self._request.graph.ops]:
            return None
        # Delays are of other latencies.  What is guaranteed does not depend on them.
        events = tuple(
            replace(event, delta_ns=0) if isinstance(event, SwapIn) and event.delta_ns else event
            for event in plan.events
        )
        try:
            settled, timeline = self._settled(replace(plan, events=events))
        except InvalidPlan:
            return None
        return _Made(plan=settled, period_ns=timeline.period_ns)

    def drafted_once(self, former: Plan) -> _Made | None:
        """Return what choosing anew gives in a plan's order; None where that does not meet the budget."""
        if all(isinstance(event, Release) for event in former.events):
            # Nothing was away, and ops ran in eager's order.
            order = next(self._orders())
        elif sorted(former.order) == [op.id for op in self._request.graph.ops]:
            order = former.order
        else:
            return None
        draft = self._draft(order, USUAL_WAY)
        return None if draft is None else self._in_step(draft)[0]

    def fastest(self) -> _Made:
        """Return the fastest plan found; the search ends with one that is hardly slower than the ops."""
        best: _Made | None = None
        for made in self.attempts():
            best = _faster(best, made)
            if best.period_ns <= _GOOD_ENOUGH * self.ops_ns:
                break
        assert best is not None, "the published algorithms meet every budget above the bound"
        return best

    def attempts(self) -> Iterator[_Made]:
        """Yield plans that meet the budget, the most promising first.

        They are made as they are asked for: planning ends with the last one that is.
        """
        best = yield from self._in_usual_way()
        published = self._as_published(None if best is None else best.period_ns)
        if published is not None:
            yield published
        yield from self._in_other_ways(best)

    def _in_usual_way(self) -> Generator[_Made, None, _Made | None]:
        """Yield plans for different orders of the ops, and return the fastest; there may be none."""
        drafts = [draft for order in self._orders() if (draft := self._draft(order, USUAL_WAY))]
        best: _Made | None = None
        for draft in sorted(drafts, key=lambda draft: (not draft.hides, draft.least_ns)):
            if draft.may_beat(best):
                made = self._in_rounds(draft)
                yield made
                best = _faster(best, made)
        return best

    def _in_other_ways(self, best: _Made | None) -> Iterator[_Made]:
        """Yield plans for the order of the best one in the usual way, as many as are worth their time."""
        order = next(self._orders()) if best is None else best.plan.order
        # Of few ops, planning is cheap; and where time is lost, there is something to gain.
        hard = best is None or best.period_ns > _HARD * self.ops_ns
        worth = max(_EFFORT_OPS // len(self._request.graph.ops), 2 if hard else 0)
        for way in OTHER_WAYS[:worth]:
            draft = self._draft(order, way)
            if draft is not None and draft.may_beat(best):
                yield self._in_rounds(draft)

    def _orders(self) -> Iterator[tuple[OpId, ...]]:
        """Yield the orders to be tried, each once."""
        graph, latencies_ns = self._request.graph, self._request.latencies_ns
        updates = EarlyUpdates(graph, latencies_ns)
        first = updates.order()
        yield first
        orders = [first, updates.order(self._shared(self._device.d2h_bytes_per_s))]
        waiting = EarlyUpdates(graph, latencies_ns, int(self._budget_nbytes * _LARGE_GRADIENT))
        if waiting.waiting:
            orders += [waiting.order(late=late) for late in _LATE]
        yield from tuple(dict.fromkeys(orders))[1:]

    def _draft(
        self, order: tuple[OpId, ...], way: Way, idle_ns: NDArray[np.int64] | None = None
    ) -> _Draft | None:
        """Choose what meets the budget; None where recomputation leaves it out of reach.

        idle_ns: how long each op stalls beforehand, which is time for copies; shape (ops,).
        """
        residency, candidates = self._with_candidates(order, way.reach)
        if idle_ns is not None:
            residency.retime(idle_ns)
        link = Link(self._device, self._sharers)
        choices = Choices(
            residency,
            link,
            candidates,
            budget_nbytes=self._budget_nbytes,
            least_nbytes=self._least_nbytes,
            first=way.first,
        )
        hides = choices.meet_budget()
        recompute_ns = choices.take_back()
        if not evict_to_budget(residency, link, self._budget_nbytes):
            return None
        return _Draft(
            residency=residency,
            link=link,
            way=way,
            hides=hides,
            least_ns=self.ops_ns + recompute_ns,
        )

    def _with_candidates(
        self, order: tuple[OpId, ...], reach: float
    ) -> tuple[Residency, Mapping[Gap, Candidate]]:
        """Return what planning in an order begins with; found once, for rounds and ways ask again."""
        residency = Residency(self._request.graph, self._request.latencies_ns, order)
        known = self._candidates.get((order, reach))
        if known is None:
            candidates = find_candidates(
                residency,
                self._device,
                near_ns=int(reach * self.ops_ns),
                least_nbytes=self._least_nbytes,
                budget_nbytes=self._budget_nbytes,
            )
            known = self._candidates[order, reach] = candidates, residency.needed, residency.pinned
        # Shared: nothing is needed or pinned once candidates are found.
        candidates, residency.needed, residency.pinned = known
        return residency, candidates

    def _in_rounds(self, draft: _Draft) -> _Made:
        """Return the draft's plan, or a faster one that comes of drafting again with its stalls."""
        best, timeline = self._in_step(draft)
        for _ in range(_ROUNDS - 1):
            if draft.hides:
                break
            again = self._draft(draft.residency.table.order, draft.way, timeline.idle_before_ns())
            if again is None:
                break
            draft = again
            made, timeline = self._in_step(draft)
            gained_ns = best.period_ns - made.period_ns
            best = _faster(best, made)
            if gained_ns < _WORTH_A_ROUND * self.ops_ns:
                break
        return best

    def _in_step(self, draft: _Draft) -> tuple[_Made, Timeline]:
        """Put the draft's copies in step with their timeline; return its plan, and the timeline of that."""
        residency, link = draft.residency, draft.link
        return_earlier(residency, link, self._budget_nbytes)
        timeline = self._settled(assemble(residency, "auto"))[1]
        follow_timeline(residency, timeline, duplex=self._device.duplex)
        return_earlier(residency, link, self._budget_nbytes)
        await_later(residency, max(timeline.peak_nbytes, residency.peak_nbytes))
        plan, timeline = self._settled(assemble(residency, "auto"))
        return _Made(plan=plan, period_ns=timeline.period_ns), timeline

    def _as_published(self, slowest_ns: int | None) -> _Made | None:
        """Return what the paper's algorithms make of the job; they meet every budget above the bound.

        None if it is slower than that.
        """
        device = replace(
            self._device,
            d2h_bytes_per_s=self._shared(self._device.d2h_bytes_per_s),
            h2d_bytes_per_s=self._shared(self._device.h2d_bytes_per_s),
        )
        plan = tensile.plan_if_faster(self._request, device, self._budget_nbytes, slowest_ns)
        if plan is None:
            return None
        plan, timeline = self._settled(replace(plan, policy="auto"))
        return _Made(plan=plan, period_ns=timeline.period_ns)

    def _shared(self, bytes_per_s: int) -> int:
        """Return the job's part of a link's rate; a copy always ends some time."""
        return max(1, bytes_per_s // self._sharers)

    def _settled(self, plan: Plan) -> tuple[Plan, Timeline]:
        return simulate_settled(self._request.graph, self._request.latencies_ns, plan, self._device)
