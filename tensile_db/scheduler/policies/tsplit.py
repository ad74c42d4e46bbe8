"""TSPLIT: where memory is short, the cheapest per byte of swapping, recomputing and splitting, until it fits.

Source: TSPLIT section IV, algorithm 2, with the cost models of equations 2 to 6, and section V.
- Ops that need more at once than there is are split first: nothing else helps them.
- While memory is short at some op, of the tensors that idle there one is swapped or recomputed (step 1), or
  the op is split (step 2), whichever takes less time for the bytes it saves (step 3).  Swaps that hide cost
  nothing and come first, then what can be made again in less time than a copy takes (`choosing/choices.py`),
  then swaps that stall (`choosing/passive.py`) or splits.
- A split graph is a graph (`splitting/split_graph.py`): micro-tensors are swapped and recomputed like other
  tensors, and ops that need a split tensor whole get it merged.
Differs:
- Bottlenecks are taken as the largest comes, not in the order of ops.
- Splits are grown over all ops that use the same large tensors, and consecutive ops run part by part
  (`splitting/choice.py`, `splitting/split_graph.py`); only along batch and channels, and only where results
  are the same but for the order in which gradients of weights are summed up.
- Micro-tensors of a tensor need not all be swapped, or all recomputed.
- Recomputation stands just before each use (`choosing/candidates.py`), not by the LRU scheme of section V-D.
- Tensors smaller than a 4000th of the budget stay, and splits are looked for at no more than six ops.
- A plan is made again with its own stalls as time for copies; what it is short of then is swapped in two
  ways, of which the faster counts (`choosing/last_resort.py`), and so it does of the rounds with the first
  way alone and with both.
- Parameters and optimizer state are swapped like other tensors, and jobs share a device.
- Of the plans with and without what was split by choice the faster one is kept: splitting may turn out slower
  than the model says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import OpId, StepGraph
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.candidates import find_candidates
from tensile_db.scheduler.choosing.choices import Choices
from tensile_db.scheduler.choosing.last_resort import within_budget
from tensile_db.scheduler.choosing.passive import FIRST_CANDIDATES, Eviction, evict, find_evictions
from tensile_db.scheduler.plan import DeviceSpec, Plan, Split
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble, await_later, return_earlier
from tensile_db.scheduler.settling.follow import follow_timeline
from tensile_db.scheduler.shares import Bound, plan_within_shares
from tensile_db.scheduler.splitting.choice import SplitChoice, Splitter, needs_nbytes
from tensile_db.scheduler.splitting.fitting import fitting_splits
from tensile_db.scheduler.splitting.latencies import as_split
from tensile_db.scheduler.splitting.pieces import Execute
from tensile_db.scheduler.splitting.refusal import split_hint_of_all
from tensile_db.scheduler.splitting.split_graph import known_split_graph
from tensile_db.scheduler.timeline import Timeline, settle, simulate

#: Times that planning begins anew because an op was split by choice.
MAX_CHOSEN_SPLITS = 4
#: Times that a plan is made again with the stalls of the one before in its timeline.
ROUNDS = 3
#: An input of a recomputation must be in use again within this part of the iteration, see
#: `choosing/candidates.py`.
REACH = 20
#: Tensors below this part of the budget stay.
LEAST_SHARE = 4000
#: Ops that are looked at each time: the first ones at which a choice would make ops wait.
MAX_SEARCHES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    plan: Plan
    period_ns: int


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job within its share of the memory.

    Raises DoesNotFit, with the least memory that would do, where splitting does not suffice either.
    """
    bound, hint = bound_of(jobs, device, memory_nbytes), split_hint_of_all(jobs, memory_nbytes)
    return plan_within_shares(jobs, device, memory_nbytes, plan_one, bound, hint)


def bound_of(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> Bound:
    """Return what the ops of a job's graph need at least, split where they need more than an even share."""
    request_of = {id(job.graph): job for job in jobs}
    found: dict[int, int] = {}
    fair_nbytes = memory_nbytes // max(1, len(jobs))

    def bound(graph: StepGraph) -> int:
        key = id(graph)
        if key not in found:
            found[key] = lower_bound_peak_nbytes(graph)
            request = request_of[key]
            limit = request.memory_limit_nbytes
            most = fair_nbytes if limit is None else min(fair_nbytes, limit)
            if found[key] > most:
                splitter = Splitter(request, device)
                found[key] = splitter.least_nbytes()
                # More than there is, whatever the others have, is too much: no search is worth its time.
                if found[key] <= memory_nbytes:
                    _, found[key] = splitter.splits_within(most)
        return found[key]

    return bound


def plan_one(
    request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int, *, both: bool = True
) -> Plan:
    """Plan one of `sharers` jobs that share the link; both: as of `within_budget`.

    Raises DoesNotFit where ops need more than that.
    """
    splitter = Splitter(request, device)
    splits: tuple[Split, ...] = ()
    if lower_bound_peak_nbytes(request.graph) > budget_nbytes:
        splits = fitting_splits(request, device, budget_nbytes)
    first: _Made | None = None
    either: _Made | None = None
    for _ in range(MAX_CHOSEN_SPLITS + 1):
        planning = _Planning(request, splits, splitter, device, budget_nbytes, sharers)
        choice = planning.choose()
        chosen = planning.residency.copy()
        were_alike = either is first
        first = planning.in_rounds(first, both=False)
        if not both or (were_alike and not planning.resorted):
            either = first
        else:
            # What is faster in one round need not be what the next one is best made from.
            planning.residency = chosen
            either = planning.in_rounds(either, both=True)
        if choice is None:
            break
        splits = choice.splits
    assert first is not None
    assert either is not None
    return min(first, either, key=lambda made: made.period_ns).plan


class _Planning:
    """Algorithm 2 on a graph with given splits."""

    def __init__(
        self,
        request: JobRequest,
        splits: tuple[Split, ...],
        splitter: Splitter,
        device: DeviceSpec,
        budget_nbytes: int,
        sharers: int,
    ) -> None:
        self._splits = splits
        self._request = as_split(request, splits, device)
        self._split = known_split_graph(request.graph, splits)
        self._splitter = splitter
        self._device = device
        self._budget_nbytes = budget_nbytes
        self._sharers = sharers
        #: Splits found so far, by op of the whole graph; None: nothing helps it.
        self._found: dict[int, SplitChoice | None] = {}
        #: Whether a plan was short of memory after all was chosen.
        self.resorted = False
        self.residency, self._link = self._new()
        self._start(np.zeros(len(self._request.graph.ops), dtype=np.int64))

    def choose(self) -> SplitChoice | None:
        """Swap what stalls least; return the first split that would be cheaper, if there is one."""
        residency = self.residency
        while residency.peak_nbytes > self._budget_nbytes:
            eviction = self._cheapest_eviction()
            if eviction is None:
                break
            choice = self._split_below(eviction.stall_ns / eviction.nbytes)
            if choice is not None:
                return choice
            evict(residency, eviction)
        return None

    def in_rounds(self, best: _Made | None, *, both: bool) -> _Made:
        """Return the plan of what was chosen, or one that comes of choosing again with its stalls, or `best`.

        Stalls are time for copies, so ops begin later by them.  best: the fastest so far; both: as of
        `within_budget`.
        """
        for _ in range(ROUNDS):
            made, idle_ns = self._finish(both=both)
            if best is not None and made.period_ns >= best.period_ns:
                break
            best = made
            self._start(idle_ns)
        assert best is not None
        return best

    def _finish(self, *, both: bool) -> tuple[_Made, NDArray[np.int64]]:
        """Return the plan of what was chosen, within the budget, and how long ops stall; ns, shape (ops,)."""
        self.resorted |= self.residency.peak_nbytes > self._budget_nbytes
        met = within_budget(self.residency, self._link, self._budget_nbytes, both=both)
        if not met:
            # Recomputations keep their inputs; without them passive swaps reach the bound.
            self.residency, self._link = self._new()
            met = within_budget(self.residency, self._link, self._budget_nbytes, both=both)
            assert met, "passive swaps reach every budget above the bound"
        return min(map(self._finished, met), key=lambda finished: finished[0].period_ns)

    def _finished(self, residency: Residency) -> tuple[_Made, NDArray[np.int64]]:
        return_earlier(residency, self._link, self._budget_nbytes)
        timeline = self._simulated(self._settled(residency))
        follow_timeline(residency, timeline, duplex=self._device.duplex)
        return_earlier(residency, self._link, self._budget_nbytes)
        await_later(residency, max(timeline.peak_nbytes, residency.peak_nbytes))
        plan = self._settled(residency)
        timeline = self._simulated(plan)
        made = _Made(plan=replace(plan, splits=self._splits), period_ns=timeline.period_ns)
        return made, timeline.idle_before_ns()

    def _start(self, idle_ns: NDArray[np.int64]) -> None:
        """Choose what is swapped because it hides, and what is recomputed."""
        latencies_ns = self._request.latencies_ns
        least_nbytes = max(1, self._budget_nbytes // LEAST_SHARE)
        self.residency, self._link = residency, link = self._new()
        candidates = find_candidates(
            residency,
            self._device,
            near_ns=sum(latencies_ns) // REACH,
            least_nbytes=least_nbytes,
            budget_nbytes=self._budget_nbytes,
        )
        residency.retime(idle_ns)
        choices = Choices(
            residency, link, candidates.by_gap, budget_nbytes=self._budget_nbytes, least_nbytes=least_nbytes
        )
        choices.meet_budget()
        choices.take_back()

    def _new(self) -> tuple[Residency, Link]:
        residency = Residency(self._request.graph, self._request.latencies_ns)
        return residency, Link(self._device, self._sharers)

    def _simulated(self, plan: Plan) -> Timeline:
        return simulate(self._request.graph, self._request.latencies_ns, plan, self._device)

    def _settled(self, residency: Residency) -> Plan:
        graph, latencies_ns = self._request.graph, self._request.latencies_ns
        return settle(graph, latencies_ns, assemble(residency, "tsplit"), self._device)

    def _cheapest_eviction(self) -> Eviction | None:
        """Return the swap of the least stall for its bytes (equation 3)."""
        position = self.residency.peak_position
        tensors = list(islice(self.residency.held_at(position), FIRST_CANDIDATES))
        return next(find_evictions(self.residency, self._link, position, self._budget_nbytes, tensors), None)

    def _split_below(self, cost: float) -> SplitChoice | None:
        """Return a split of the op at the peak that costs less time for the bytes it saves."""
        op = self.residency.table.order[self.residency.peak_position]
        piece = self._split.pieces[op]
        whole = piece.op if isinstance(piece, Execute) else None
        if cost == 0 or whole is None:
            return None
        if whole not in self._found:
            if len(self._found) == MAX_SEARCHES:
                return None
            self._found[whole] = self._find_split(op)
        choice = self._found[whole]
        if choice is None:
            return None
        # It may have been found for a part of the op that needs more than this one.
        saved_nbytes = needs_nbytes(self._split.graph)[op] - choice.needed_nbytes
        if saved_nbytes <= 0:
            return None
        return choice if choice.added_ns / saved_nbytes < cost else None

    def _find_split(self, op: OpId) -> SplitChoice | None:
        needed_nbytes = needs_nbytes(self._split.graph)[op]
        return self._splitter.find(self._splits, self._split, op, needed_nbytes // 2)
