"""For every idle gap of every tensor of a job: stay, be swapped, or be recomputed.

Decided where the footprint exceeds the budget, highest first: copies that hide come before recomputation, and
tensors that cannot be made again cheaply, or that idle longest, before others.  Then what has turned out too
much is taken back.  Where copies take time of what computes, what is made again in less comes before them.

Source: ours; docs/planner/auto.md.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.choosing.bookings import Bookings, Copies
from tensile_db.scheduler.choosing.candidates import Candidate
from tensile_db.scheduler.choosing.gaps import RECOMPUTE, STAY, SWAP, Gaps

#: For how many positions gaps are looked through before those with nothing left to choose are left out.
_OPEN_FOR = 32


class First(Enum):
    """Which of the tensors whose copies hide are swapped first."""

    #: Those that recomputation makes dearest.
    DEAREST = auto()
    #: Those that idle longest (Capuchin's free time).
    IDLE_LONGEST = auto()


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
        ahead: bool = True,
    ) -> None:
        """least_nbytes: smaller tensors stay.  ahead: as a Way has it."""
        self._residency = residency
        self._budget_nbytes = budget_nbytes
        self._gaps = gaps = Gaps(residency, link, candidates, least_nbytes)
        self._bookings = Bookings(gaps, link)
        #: Where recomputation takes less of the ops' time than copies do.
        self._copies_cost_more = np.array(
            [
                candidate is not None and candidate.time_ns < lost_ns
                for candidate, lost_ns in zip(gaps.candidates, gaps.lost_ns, strict=True)
            ],
            dtype=bool,
        )
        #: What is swapped first where there is a choice, the largest number first.
        self._swapped_first = gaps.recompute_cost if first is First.DEAREST else gaps.idle_ns()
        self._choice = np.zeros(len(gaps.all), dtype=np.int64)
        #: Not of what is made from sources that are not held until then.
        self._may_recompute = gaps.may_recompute.copy()
        self._absences: dict[int, Absence] = {}
        self._copies: dict[int, Copies] = {}
        #: Gaps over the iteration's end whose copies do not hide.
        self._never_first: set[int] = set()
        self._ahead = ahead
        #: The gaps of which something is left to choose while the budget is being met, ascending.
        self._open = np.arange(len(gaps.all))

    @property
    def gaps(self) -> Gaps:
        """What there is to choose for."""
        return self._gaps

    @property
    def chosen(self) -> list[int]:
        """What is chosen for each gap: STAY, SWAP or RECOMPUTE."""
        chosen: list[int] = self._choice.tolist()
        return chosen

    def meet_budget(self) -> bool:
        """Choose until the footprint is within the budget; return whether it is, with no op stalled."""
        footprint = self._residency.footprint
        met = np.zeros(self._gaps.ops, dtype=bool)
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
        self._drop_sources()
        recomputed = np.nonzero(self._choice == RECOMPUTE)[0].tolist()
        for index in sorted(recomputed, key=lambda index: (-self._gaps.candidate(index).time_ns, index)):
            absence, nbytes = self._absences[index], int(self._gaps.nbytes[index])
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
        self._drop_sources()
        return self._recomputed_ns()

    def take(self, chosen: Sequence[int]) -> int:
        """Choose as told, for each gap, while nothing is chosen yet; return the time of the recomputations.

        Copies are booked as `search.py` expects them to be.  A tensor whose copies do not hide stays.
        """
        gaps, bookings = self._gaps, self._bookings
        on_host = [any(chosen[earlier] == SWAP for earlier in paid_in) for paid_in in gaps.paid_in]
        leaves: dict[int, int] = {}
        for index in gaps.by_release:
            if chosen[index] == SWAP:
                begin_ns = bookings.out(index, on_host=on_host[index])
                if begin_ns is not None:
                    leaves[index] = begin_ns
        for index in gaps.by_return:
            if index in leaves:
                copies = bookings.back(index, leaves[index], on_host=on_host[index])
                if copies is not None:
                    self._swap(index, copies)
        for index, choice in enumerate(chosen):
            if choice == RECOMPUTE:
                self._run_again(index)
        self._drop_sources()
        return self._recomputed_ns()

    def _drop_sources(self) -> None:
        """Hold tensors beyond their last access no longer than the chosen recomputations read them."""
        residency = self._residency
        if not residency.held_until:
            return
        until = {tensor: int(residency.table.last[tensor]) for tensor in residency.held_until}
        for index in np.nonzero(self._choice == RECOMPUTE)[0].tolist():
            candidate = self._gaps.candidate(index)
            for tensor in until.keys() & candidate.chain.inputs:
                until[tensor] = max(until[tensor], candidate.gap.following)
        for index, gap in enumerate(self._gaps.all):
            if gap.following > until.get(gap.tensor, gap.following):
                if self._choice[index] != STAY:
                    self._undo(index)
                # It is not there any more by then.
                self._may_recompute[index] = False
                self._bookings.forbid(index)
        for index in np.nonzero(self._may_recompute)[0].tolist():
            candidate = self._gaps.candidate(index)
            if any(candidate.gap.following > until[read] for read in until.keys() & candidate.chain.inputs):
                self._may_recompute[index] = False
        for tensor, last in until.items():
            if last < residency.held_until[tensor]:
                residency.hold(tensor, last)
        # What is needed is shared with other states of the same job.
        residency.needed = residency.needed | {
            tensor: [at for at in residency.needed[tensor] if at <= last] for tensor, last in until.items()
        }

    def _recomputed_ns(self) -> int:
        """Return the time of the recomputations, once it is settled what they are."""
        left = np.nonzero(self._choice == RECOMPUTE)[0].tolist()
        return sum(self._gaps.candidate(index).time_ns for index in left)

    def _meet_at(self, position: int) -> None:
        footprint, budget_nbytes = self._residency.footprint, self._budget_nbytes
        at = np.where(self._gaps.previous[self._open] < position, position, position + self._gaps.ops)
        covers = at < self._gaps.following[self._open]
        covering, at = self._open[covers], at[covers]
        cheap = self._copies_cost_more[covering] & (self._choice[covering] == STAY)
        cheap &= self._may_recompute[covering]
        if self._recompute_at(position, covering[cheap]):
            return
        may_hide = (self._bookings.no_out_before[covering] < at) & (at < self._bookings.no_in_after[covering])
        staying = covering[may_hide & (self._choice[covering] == STAY)]
        for index in self._in_order(staying, swapped=True):
            if footprint[position] <= budget_nbytes:
                return
            unrolled = position if self._gaps.all[index].previous < position else position + self._gaps.ops
            copies = self._book(index, unrolled, unrolled)
            if copies is not None:
                self._swap(index, copies)
        possible = covering[(self._choice[covering] != RECOMPUTE) & self._may_recompute[covering]]
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
        may_swap = (choice == STAY) & (self._bookings.no_out_before[self._open] < 2 * self._gaps.ops)
        may_recompute = (choice != RECOMPUTE) & self._may_recompute[self._open]
        self._open = self._open[may_swap | may_recompute]

    def _in_order(self, indices: NDArray[np.int64], *, swapped: bool) -> Iterable[int]:
        """Return gaps in the order in which they are swapped, or by what recomputation costs."""
        if len(indices) < 2:
            few: list[int] = indices.tolist()
            return few
        if swapped:
            order = np.lexsort((indices, -self._gaps.nbytes[indices], -self._swapped_first[indices]))
        else:
            order = np.lexsort((indices, self._gaps.recompute_cost[indices]))
        ordered: list[int] = indices[order].tolist()
        return ordered

    def _book(self, index: int, first: int, last: int) -> Copies | None:
        """Book copies that hide and leave the tensor away during the ops [first, last], unrolled."""
        if self._is_on_host(index):
            return self._bookings.around(index, first, last, on_host=True)
        before = self._swap_before(index)
        if before is None:
            return self._bookings.around(index, first, last, on_host=False)
        copies = self._bookings.around(index, first, last, on_host=True)
        if copies is None:
            self._undo(before)
        return copies

    def _is_on_host(self, index: int) -> bool:
        """Whether the host has the tensor's value when the gap begins."""
        for earlier in reversed(self._gaps.paid_in[index]):
            if self._choice[earlier] != STAY:
                return bool(self._choice[earlier] == SWAP)
        return False

    def _swap_before(self, index: int) -> int | None:
        """Swap the tensor over the iteration's end, if that hides, so that later it leaves without a copy.

        Most of a forward pass the channel to the host has more to do than at the iteration's end.  Returns
        the gap over the iteration's end.
        """
        before = self._gaps.paid_in[index][0] if self._ahead and self._gaps.paid_in[index] else None
        if before is None or before in self._never_first or self._choice[before] != STAY:
            return None
        copies = self._bookings.anywhere(before) if self._gaps.all[before].wraps else None
        if copies is None:
            self._never_first.add(before)
            return None
        self._swap(before, copies)
        return before

    def _swap(self, index: int, copies: Copies) -> None:
        absence = self._bookings.absence(index, copies)
        self._residency.add(absence)
        self._absences[index], self._copies[index] = absence, copies
        self._choice[index] = SWAP

    def _recompute(self, index: int, position: int) -> None:
        """Recompute the tensor, unless that makes another op worse than the one at `position` is."""
        residency, candidate = self._residency, self._gaps.candidate(index)
        there_nbytes = int(residency.footprint[candidate.gap.following]) + candidate.beyond_nbytes
        if there_nbytes > max(self._budget_nbytes, int(residency.footprint[position])):
            return
        if self._choice[index] == SWAP:
            if self._serves(index):
                return
            self._undo(index)
        self._run_again(index)

    def _serves(self, index: int) -> bool:
        """Whether the tensor leaves later without a copy because it is swapped in this gap."""
        copies = self._copies
        return any(later in copies and not copies[later].out_ns for later in self._gaps.pays_for[index])

    def _run_again(self, index: int) -> None:
        residency, candidate = self._residency, self._gaps.candidate(index)
        gap, chain = candidate.gap, candidate.chain
        absence = Absence(gap=gap, begin=gap.previous + 1, end=gap.following, recompute=chain.ops)
        residency.add(absence)
        residency.charge_op(gap.following, candidate.beyond_nbytes)
        self._absences[index], self._choice[index] = absence, RECOMPUTE

    def _undo(self, index: int) -> None:
        self._residency.remove(self._absences.pop(index))
        if self._choice[index] == RECOMPUTE:
            candidate = self._gaps.candidate(index)
            self._residency.charge_op(candidate.gap.following, -candidate.beyond_nbytes)
        else:
            self._bookings.unbook(self._copies.pop(index))
        self._choice[index] = STAY
