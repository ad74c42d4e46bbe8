"""For every idle gap of every tensor of a job: stay, be swapped, or be recomputed.

Decided where the footprint exceeds the budget, highest first: copies that hide come before recomputation, and
tensors that cannot be made again cheaply, or that idle longest, before others.  Then what has turned out too
much is taken back.  Where copies take time of what computes, what is made again in less comes before them.

Source: ours; docs/planner.md, "auto".  The value of a recomputation, time per byte, is the inverse of MSPS
(Capuchin equation 3, TENSILE equation 4).
"""

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.choosing.candidates import Candidate

#: For how many positions gaps are looked through before those with nothing left to choose are left out.
_OPEN_FOR = 32


#: What is chosen for a gap, as arrays have it.
_STAY, _SWAP, _RECOMPUTE = range(3)


class First(Enum):
    """Which of the tensors whose copies hide are swapped first."""

    #: Those that recomputation makes dearest.
    DEAREST = auto()
    #: Those that idle longest (Capuchin's free time).
    IDLE_LONGEST = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copies:
    """Booked copies of a gap; ns from the iteration's start."""

    out_ns: int
    out_begin_ns: int
    in_ns: int
    in_begin_ns: int


class Choices:
    """The gaps of one job, and what is chosen for each; arrays are of shape (gaps,)."""

    def __init__(
        self,
        residency: Residency,
        link: Link,
        candidates: Mapping[Gap, Candidate],
        *,
        budget_nbytes: int,
        least_nbytes: int,
        first: First = First.DEAREST,
    ) -> None:
        """least_nbytes: smaller tensors stay."""
        self._residency = residency
        self._link = link
        self._budget_nbytes = budget_nbytes
        self._ops = len(residency.table.order)
        self._gaps = [
            gap
            for tensor in residency.graph.tensors
            if tensor.nbytes >= least_nbytes and tensor.id not in residency.pinned
            for gap in _gaps_of(residency, tensor.id)
        ]
        self._candidates = [candidates.get(gap) for gap in self._gaps]
        tensors = residency.graph.tensors
        self._nbytes = np.array([tensors[gap.tensor].nbytes for gap in self._gaps], dtype=np.int64)
        self._previous = np.array([gap.previous for gap in self._gaps], dtype=np.int64)
        self._following = np.array([gap.following for gap in self._gaps], dtype=np.int64)
        #: What recomputation costs, ns a byte; infinite where there is none.
        self._cost = np.array(
            [
                np.inf if candidate is None else candidate.time_ns / tensors[candidate.gap.tensor].nbytes
                for candidate in self._candidates
            ]
        )
        self._has_candidate = np.isfinite(self._cost)
        #: Where recomputation takes less of the ops' time than copies do.
        self._copies_cost_more = np.array(
            [
                candidate is not None and candidate.time_ns < link.ops_lose_ns(nbytes)
                for candidate, nbytes in zip(self._candidates, self._nbytes.tolist(), strict=True)
            ],
            dtype=bool,
        )
        #: What is swapped first where there is a choice, the largest number first.
        self._swapped_first = self._cost if first is First.DEAREST else self._idle_ns()
        self._choice = np.zeros(len(self._gaps), dtype=np.int64)
        self._absences: dict[int, Absence] = {}
        self._copies: dict[int, _Copies] = {}
        #: No copy out ends before an op up to here, and no copy in begins after an op from there on
        #: (unrolled): bookings only grow while the budget is being met.
        self._no_out_before = np.full(len(self._gaps), -1, dtype=np.int64)
        self._no_in_after = np.full(len(self._gaps), 3 * self._ops, dtype=np.int64)
        #: The gaps of which something is left to choose while the budget is being met, ascending.
        self._open = np.arange(len(self._gaps))
        #: When ops begin and end, ns, and when the last one does: read one by one, a list is faster.
        self._begin_ns: list[int] = residency.begin_ns.tolist()
        self._end_ns: list[int] = residency.end_ns.tolist()
        self._copy_ns = [(link.out_ns(nbytes), link.in_ns(nbytes)) for nbytes in self._nbytes.tolist()]

    def meet_budget(self) -> bool:
        """Choose until the footprint is within the budget; return whether it is, with no op stalled."""
        footprint = self._residency.footprint
        met = np.zeros(self._ops, dtype=bool)
        for count in itertools.count():
            if count % _OPEN_FOR == 0:
                self._close()
            position = int(np.where(met, -1, footprint).argmax())
            if met[position] or footprint[position] <= self._budget_nbytes:
                break
            self._meet_at(position)
            met[position] = True
        return bool(footprint.max() <= self._budget_nbytes)

    def take_back(self) -> int:
        """Let tensors stay, or be swapped, that need not be recomputed after all; the costliest first.

        Returns the time of the recomputations that are left.
        """
        recomputed = np.nonzero(self._choice == _RECOMPUTE)[0].tolist()
        for index in sorted(recomputed, key=lambda index: (-self._candidate(index).time_ns, index)):
            absence, nbytes = self._absences[index], int(self._nbytes[index])
            held = self._residency.footprint[absence.begin : absence.end] + nbytes
            above = np.nonzero(held > self._budget_nbytes)[0]
            if not len(above):
                self._undo(index)
                continue
            if self._copies_cost_more[index]:
                continue
            first, last = absence.begin + int(above[0]), absence.begin + int(above[-1])
            copies = self._book(index, first, last)
            if copies is not None:
                self._undo(index)
                self._swap(index, copies)
        left = np.nonzero(self._choice == _RECOMPUTE)[0].tolist()
        self._residency.recomputed_before = {self._gaps[index].following for index in left}
        for absence in list(self._absences.values()):
            if not absence.recompute and absence.begin in self._residency.recomputed_before:
                self._residency.replace(absence, self._awaited_elsewhere(absence))
        return sum(self._candidate(index).time_ns for index in left)

    def _meet_at(self, position: int) -> None:
        footprint, budget_nbytes = self._residency.footprint, self._budget_nbytes
        at = np.where(self._previous[self._open] < position, position, position + self._ops)
        covers = at < self._following[self._open]
        covering, at = self._open[covers], at[covers]
        cheap = self._copies_cost_more[covering] & (self._choice[covering] == _STAY)
        if self._recompute_at(position, covering[cheap]):
            return
        may_hide = (self._no_out_before[covering] < at) & (at < self._no_in_after[covering])
        staying = covering[may_hide & (self._choice[covering] == _STAY)]
        for index in self._in_order(staying, swapped=True):
            if footprint[position] <= budget_nbytes:
                return
            unrolled = position if self._gaps[index].previous < position else position + self._ops
            copies = self._book(index, unrolled, unrolled)
            if copies is not None:
                self._swap(index, copies)
        possible = covering[(self._choice[covering] != _RECOMPUTE) & self._has_candidate[covering]]
        self._recompute_at(position, possible)

    def _recompute_at(self, position: int, gaps: NDArray[np.int64]) -> bool:
        """Recompute in these gaps, the cheapest first, until the budget is met; return whether it is."""
        for index in self._in_order(gaps, swapped=False):
            if self._residency.footprint[position] <= self._budget_nbytes:
                return True
            absence = self._absences.get(index)
            if absence is None or not absence.covers(position):
                self._recompute(index, position)
        return bool(self._residency.footprint[position] <= self._budget_nbytes)

    def _close(self) -> None:
        """Leave out gaps that cannot be swapped or recomputed any more: choices only add up."""
        choice = self._choice[self._open]
        may_swap = (choice == _STAY) & (self._no_out_before[self._open] < 2 * self._ops)
        may_recompute = (choice != _RECOMPUTE) & self._has_candidate[self._open]
        self._open = self._open[may_swap | may_recompute]

    def _in_order(self, indices: NDArray[np.int64], *, swapped: bool) -> Iterable[int]:
        """Return gaps in the order in which they are swapped, or by what recomputation costs."""
        if len(indices) < 2:
            few: list[int] = indices.tolist()
            return few
        if swapped:
            order = np.lexsort((indices, -self._nbytes[indices], -self._swapped_first[indices]))
        else:
            order = np.lexsort((indices, self._cost[indices]))
        ordered: list[int] = indices[order].tolist()
        return ordered

    def _idle_ns(self) -> NDArray[np.float64]:
        """Return how long each gap lasts; shape (gaps,)."""
        residency = self._residency
        back_ns = residency.begin_ns[self._following % self._ops]
        back_ns = back_ns + np.where(self._following >= self._ops, residency.end_ns[-1], 0)
        return np.asarray(back_ns - residency.end_ns[self._previous], dtype=np.float64)

    def _book(self, index: int, first: int, last: int) -> _Copies | None:
        """Book copies that hide and leave the tensor away during the ops [first, last], unrolled."""
        link, gap, ops = self._link, self._gaps[index], self._ops
        out_ns, in_ns = self._copy_ns[index]
        # Across iterations the copy out ends with the iteration.
        out_begin_ns = link.to_host.earliest(self._end_ns[gap.previous], self._end_ns[-1], out_ns)
        if out_begin_ns is None:
            self._no_out_before[index] = 3 * ops
            return None
        if first < ops and out_begin_ns + out_ns > self._begin_ns[first]:
            self._no_out_before[index] = bisect_left(self._begin_ns, out_begin_ns + out_ns) - 1
            return None
        link.to_host.book(out_begin_ns, out_ns)
        in_from_ns = 0 if gap.wraps else self._end_ns[gap.previous]
        in_begin_ns = link.to_device.latest(in_from_ns, self._deadline_ns(gap), in_ns)
        back = -1 if in_begin_ns is None else bisect_right(self._end_ns, in_begin_ns)
        if in_begin_ns is None or last - (ops if gap.wraps else 0) >= back:
            link.to_host.unbook(out_begin_ns, out_ns)
            # On a shared channel the copy back has only made way for the copy out just taken back.
            if self._link.duplex:
                later = ops if gap.wraps and in_begin_ns is not None else 0
                self._no_in_after[index] = back + later
            return None
        link.to_device.book(in_begin_ns, in_ns)
        return _Copies(out_ns=out_ns, out_begin_ns=out_begin_ns, in_ns=in_ns, in_begin_ns=in_begin_ns)

    def _deadline_ns(self, gap: Gap) -> int:
        """Return when the tensor must be back: where a recomputation needs it, before that begins."""
        following = gap.following % self._ops
        if following and following in self._residency.needed.get(gap.tensor, ()):
            return self._end_ns[following - 1]
        return self._begin_ns[following]

    def _swap(self, index: int, copies: _Copies) -> None:
        """Anchor booked copies to ops.  Delays count from the next op's begin, so that a stall ends early."""
        gap, ops = self._gaps[index], self._ops
        out_position = max(bisect_right(self._end_ns, copies.out_begin_ns) - 1, gap.previous)
        back = bisect_right(self._end_ns, copies.in_begin_ns)
        next_ns = self._begin_ns[out_position + 1] if out_position + 1 < ops else self._end_ns[-1]
        absence = Absence(
            gap=gap,
            begin=bisect_left(self._begin_ns, copies.out_begin_ns + copies.out_ns),
            end=back + ops if gap.wraps else back,
            out_position=out_position,
            out_delta_ns=max(0, copies.out_begin_ns - next_ns),
            in_delta_ns=max(0, copies.in_begin_ns - self._begin_ns[back]),
        )
        self._residency.add(absence)
        self._absences[index], self._copies[index] = absence, copies
        self._choice[index] = _SWAP

    def _recompute(self, index: int, position: int) -> None:
        """Recompute the tensor, unless that makes another op worse than the one at `position` is."""
        residency, candidate = self._residency, self._candidate(index)
        gap, extra_nbytes = candidate.gap, candidate.chain.extra_nbytes
        there_nbytes = int(residency.footprint[gap.following]) + extra_nbytes
        if there_nbytes > max(self._budget_nbytes, int(residency.footprint[position])):
            return
        if self._choice[index] == _SWAP:
            self._undo(index)
        absence = Absence(gap=gap, begin=gap.previous + 1, end=gap.following, recompute=candidate.chain.ops)
        residency.add(absence)
        residency.charge_op(gap.following, extra_nbytes)
        residency.recomputed_before.add(gap.following)
        self._absences[index], self._choice[index] = absence, _RECOMPUTE

    def _awaited_elsewhere(self, absence: Absence) -> Absence:
        """Return the absence awaited before another op; a plan recomputes before it waits for departures."""
        recomputed_before = self._residency.recomputed_before
        earlier = later = absence.begin
        while earlier in recomputed_before:
            earlier -= 1
        while later in recomputed_before:
            later += 1
        left = max(absence.out_position, absence.gap.previous)
        return replace(absence, begin=earlier if earlier > left else min(later, absence.end))

    def _undo(self, index: int) -> None:
        self._residency.remove(self._absences.pop(index))
        if self._choice[index] == _RECOMPUTE:
            candidate = self._candidate(index)
            self._residency.charge_op(candidate.gap.following, -candidate.chain.extra_nbytes)
        else:
            copies = self._copies.pop(index)
            self._link.to_host.unbook(copies.out_begin_ns, copies.out_ns)
            self._link.to_device.unbook(copies.in_begin_ns, copies.in_ns)
        self._choice[index] = _STAY

    def _candidate(self, index: int) -> Candidate:
        candidate = self._candidates[index]
        assert candidate is not None, "only candidates are recomputed"
        return candidate


def _gaps_of(residency: Residency, tensor: TensorId) -> Iterable[Gap]:
    """Yield the gaps in which ops run, the one over the iteration's end too."""
    accesses, ops = residency.accesses(tensor), len(residency.table.order)
    for previous, following in pairwise(accesses):
        if following > previous + 1:
            yield Gap(tensor=tensor, previous=previous, following=following, ops=ops)
    if accesses and residency.graph.tensors[tensor].persistent:
        yield Gap(tensor=tensor, previous=accesses[-1], following=accesses[0] + ops, ops=ops)
