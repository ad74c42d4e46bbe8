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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tensile_db.errors import DoesNotFit
from tensile_db.graph import OpId
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.candidates import find_candidates
from tensile_db.scheduler.choosing.choices import Choices, First
from tensile_db.scheduler.choosing.order import EarlyUpdates
from tensile_db.scheduler.choosing.passive import evict_to_budget
from tensile_db.scheduler.plan import DeviceSpec, Plan, Split
from tensile_db.scheduler.policies import tensile, vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble, await_later, return_earlier
from tensile_db.scheduler.settling.follow import follow_timeline
from tensile_db.scheduler.shares import check_bounds, limit_of, share
from tensile_db.scheduler.splitting.choice import SPLIT_HINT, Splitter
from tensile_db.scheduler.splitting.latencies import as_split
from tensile_db.scheduler.timeline import Timeline, simulate_settled

#: How far recomputation reaches back, as a share of the iteration's time.
_REACH = 0.05
#: Other ways to choose, for jobs where that is worth it, the most promising first.
_OTHER_WAYS = (
    (0.2, First.IDLE_LONGEST),
    (0.2, First.DEAREST),
    (0.02, First.DEAREST),
    (0.05, First.IDLE_LONGEST),
)
#: Of a job with so many ops another way is tried; of one with half as many, two.
_EFFORT_OPS = 4000
#: How much later large gradients are made where nobody waits for them, as a share of the time that is left;
#: and what is large, as a share of the budget.
_LATE = (0.1, 0.2)
_LARGE_GRADIENT = 0.05
#: A plan slower than this times its ops alone is worth trying to beat.
_GOOD_ENOUGH = 1.001
#: A job slower than this is worth trying two other ways, whatever its size.
_HARD = 1.1
#: Arithmetic that takes as long as moving a byte, on any device, where only ops are compared.
_FLOPS_OF_A_BYTE = 32
#: Tensors below this share of the budget stay.
_LEAST_SHARE = 1 / 4000
#: A plan is made again with the stalls of the one before in its timeline, at most so often, and as long as
#: that saves more than this share of the time.
_ROUNDS = 3
_WORTH_A_ROUND = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    plan: Plan
    period_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """What is chosen for one order of the ops, before its copies are put in step with their timeline."""

    residency: Residency
    link: Link
    reach: float
    first: First
    #: Whether no op waits for a copy, as far as can be told yet.
    hides: bool
    #: The time of all ops and recomputations.
    least_ns: int


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
        replace(plan_one(job, device, budget, len(jobs)), splits=splits)
        for (job, splits), budget in zip(cut, budgets, strict=True)
    )


def _cut_to_size(job: JobRequest, device: DeviceSpec) -> tuple[JobRequest, tuple[Split, ...]]:
    """Return the job with those ops in parts that alone need more than there is, and how they are split.

    It does not depend on what was measured, nor on what else runs: split sums are rounded otherwise, and a
    job's results are its own.
    """
    most_nbytes = limit_of(job, device.memory_nbytes)
    if lower_bound_peak_nbytes(job.graph) <= most_nbytes:
        return job, ()
    by_size = tuple(1 + op.flops // _FLOPS_OF_A_BYTE + op.moved_nbytes for op in job.graph.ops)
    # A worker measures its device's rates anew whenever it starts.
    nominal = replace(
        device, flops_per_s=_FLOPS_OF_A_BYTE * 10**9, memory_bytes_per_s=10**9, op_overhead_ns=1
    )
    splitter = Splitter(replace(job, latencies_ns=by_size), nominal)
    splits, needed_nbytes = splitter.splits_within(most_nbytes)
    if needed_nbytes > most_nbytes:
        raise DoesNotFit(needed_nbytes=needed_nbytes, budget_nbytes=most_nbytes, hint=SPLIT_HINT)
    return as_split(job, splits, device), splits


def plan_one(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan one of `sharers` jobs that share the link, within a budget that is at least its bound."""
    if vanilla.peak_nbytes(request.graph) <= budget_nbytes:
        eager = vanilla.plan_one(request.graph)
        return Plan(policy="auto", order=eager.order, events=eager.events)
    planner = _Planner(request, device, budget_nbytes, sharers)
    best: _Made | None = None
    for made in planner.attempts():
        if best is None or made.period_ns < best.period_ns:
            best = made
        if best.period_ns <= _GOOD_ENOUGH * planner.ops_ns:
            break
    assert best is not None, "the published algorithms meet every budget above the bound"
    return best.plan


class _Planner:
    def __init__(self, request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> None:
        self._request = request
        self._device = device
        self._budget_nbytes = budget_nbytes
        self._sharers = sharers
        self._least_nbytes = max(1, int(budget_nbytes * _LEAST_SHARE))
        #: The time of the ops alone.
        self.ops_ns = sum(request.latencies_ns)

    def attempts(self) -> Iterator[_Made]:
        """Yield plans that meet the budget, the most promising first."""
        drafts = [draft for order in self._orders() if (draft := self._draft(order, _REACH, First.DEAREST))]
        best: _Made | None = None
        for draft in sorted(drafts, key=lambda draft: (not draft.hides, draft.least_ns)):
            # A draft takes no less time than its ops do.
            if best is None or draft.least_ns < best.period_ns:
                made = self._finished(draft)
                yield made
                best = made if best is None or made.period_ns < best.period_ns else best
        published = self._as_published(None if best is None else best.period_ns)
        if published is not None:
            yield published
        order = next(self._orders()) if best is None else best.plan.order
        for reach, first in _OTHER_WAYS[: self._more_attempts(best)]:
            other = self._draft(order, reach, first)
            if other is not None and (best is None or other.least_ns < best.period_ns):
                yield self._finished(other)

    def _more_attempts(self, best: _Made | None) -> int:
        """Return how many other ways are worth their planning time: of few ops, or where time is lost."""
        hard = best is None or best.period_ns > _HARD * self.ops_ns
        return max(_EFFORT_OPS // len(self._request.graph.ops), 2 if hard else 0)

    def _orders(self) -> Iterator[tuple[OpId, ...]]:
        """Yield the orders to be tried, each once."""
        graph, latencies_ns = self._request.graph, self._request.latencies_ns
        updates = EarlyUpdates(graph, latencies_ns)
        orders = [updates.order(), updates.order(self._shared(self._device.d2h_bytes_per_s))]
        waiting = EarlyUpdates(graph, latencies_ns, int(self._budget_nbytes * _LARGE_GRADIENT))
        if waiting.waiting:
            orders += [waiting.order(late=late) for late in _LATE]
        yield from dict.fromkeys(orders)

    def _draft(
        self,
        order: tuple[OpId, ...],
        reach: float,
        first: First,
        idle_ns: NDArray[np.int64] | None = None,
    ) -> _Draft | None:
        """Choose what meets the budget; None where recomputation leaves it out of reach.

        idle_ns: before each op, shape (ops,).
        """
        residency = Residency(self._request.graph, self._request.latencies_ns, order)
        candidates = find_candidates(
            residency,
            self._device,
            near_ns=int(reach * self.ops_ns),
            least_nbytes=self._least_nbytes,
            budget_nbytes=self._budget_nbytes,
        )
        if idle_ns is not None:
            residency.retime(idle_ns)
        link = Link(self._device, self._sharers)
        choices = Choices(
            residency,
            link,
            candidates,
            budget_nbytes=self._budget_nbytes,
            least_nbytes=self._least_nbytes,
            first=first,
        )
        hides = choices.meet_budget()
        recompute_ns = choices.take_back()
        if not evict_to_budget(residency, link, self._budget_nbytes):
            return None
        return _Draft(
            residency=residency,
            link=link,
            reach=reach,
            first=first,
            hides=hides,
            least_ns=self.ops_ns + recompute_ns,
        )

    def _finished(self, draft: _Draft) -> _Made:
        """Return the best plan of a few rounds."""
        best, timeline = self._made(draft)
        for _ in range(_ROUNDS - 1):
            if draft.hides:
                break
            again = self._draft(draft.residency.table.order, draft.reach, draft.first, _idle_before(timeline))
            if again is None:
                break
            draft = again
            made, timeline = self._made(draft)
            gained_ns = best.period_ns - made.period_ns
            if gained_ns > 0:
                best = made
            if gained_ns < _WORTH_A_ROUND * self.ops_ns:
                break
        return best

    def _made(self, draft: _Draft) -> tuple[_Made, Timeline]:
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


def _idle_before(timeline: Timeline) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return how long before each op nothing but recomputation runs; shape (ops,)."""
    spans = [span for span in timeline.ops if not span.recompute]
    begins_ns = np.array([span.begin_ns for span in spans], dtype=np.int64)
    ends_ns = np.array([0, *(span.end_ns for span in spans[:-1])], dtype=np.int64)
    return begins_ns - ends_ns
