"""Capuchin's choice between swapping and recomputing, tensor by tensor.

Source: Capuchin section 4.5, algorithm 1. First phase: swaps, longest free time first, as long as both copies
hide. Second phase: of the swap of least overhead and the recomputation of the largest MSPS the one that costs
less.
Differs: see `policies/capuchin.py`.
"""

import heapq
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.chains import find_chain
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.choosing.msps import Lineage, Lineages
from tensile_db.scheduler.choosing.swap import timed_absence

#: Tensors below this share of the budget stay: copying them would cost more than they take.
LEAST_SHARE = 1 / 4000
#: Later than any copy within an iteration ends, ns.
_NEVER_NS = 2**62


class Selection:
    """What has been chosen for one job, in the order chosen."""

    def __init__(
        self,
        residency: Residency,
        latencies_ns: Sequence[int],
        link: Link,
        budget_nbytes: int,
        *,
        swaps: bool = True,
        recomputes: bool = True,
    ) -> None:
        """Choose nothing yet; swaps, recomputes: whether there is a choice of them at all."""
        self._swaps, self._recomputes = swaps, recomputes
        #: As planned so far.
        self.residency = residency
        self.swaps: list[Absence] = []
        self.recomputed: dict[TensorId, Gap] = {}
        #: Tensors that turned out not to be recomputable beside others that are.
        self.refused: set[TensorId] = set()
        self._latencies_ns = latencies_ns
        self._link = link
        self._budget_nbytes = budget_nbytes

    def swap_what_hides(self) -> None:
        """Swap while memory is short, longest free time first, what stalls nothing."""
        if not self._swaps:
            return
        ranked = sorted(
            self._candidates(), key=lambda gap: (-self._free_ns(gap), -self._nbytes(gap.tensor), gap.tensor)
        )
        for gap in ranked:
            if self._free_ns(gap) < 0 or not self._is_short():
                return
            if self._is_short_in(gap) and (absence := self._hidden_swap(gap)) is not None:
                self._swap(absence)

    def swap_or_recompute(self) -> None:
        """While memory is short, swap or recompute what costs less."""
        gaps = {gap.tensor: gap for gap in self._candidates()}
        recomputable = gaps.values() if self._recomputes else ()
        lineages = Lineages(lineage for gap in recomputable if (lineage := self._lineage(gap)) is not None)
        others = gaps.values() if self._swaps else ()
        swappable = [(self._stall_ns(gap), -self._free_ns(gap), gap.tensor) for gap in others]
        heapq.heapify(swappable)
        while self._is_short():
            best = self._best_recomputation(lineages)
            least = self._least_stall(swappable)
            if best is not None and (least is None or best.overhead_ns <= least[0]):
                self._recompute(best, lineages)
            elif least is not None:
                heapq.heappop(swappable)
                absence = self._stalling_swap(least[1])
                self._swap(absence)
                self._update_lineages(lineages, absence.tensor)
            else:
                return

    def continue_from(self, residency: Residency) -> None:
        """Take up what was planned from the choices so far; some may have been impossible together."""
        self.residency = residency
        self.swaps = [absence for absence in self.swaps if absence.tensor in residency.absences]
        for tensor in [t for t in self.recomputed if t not in residency.absences]:
            del self.recomputed[tensor]
            self.refused.add(tensor)

    def give_up_at(self, planned: Residency, position: int) -> None:
        """Recompute nothing of what takes memory at an op where passive swaps find none to free."""
        stuck = [
            tensor
            for tensor, gap in self.recomputed.items()
            if gap.previous < position <= gap.following and planned.absence_at(tensor, position) is None
        ]
        for tensor in stuck or list(self.recomputed):
            del self.recomputed[tensor]
            self.refused.add(tensor)

    def _nbytes(self, tensor: TensorId) -> int:
        return self.residency.graph.tensors[tensor].nbytes

    def _short(self) -> NDArray[np.bool_]:
        return self.residency.footprint > self._budget_nbytes

    def _is_short(self) -> bool:
        return self.residency.peak_nbytes > self._budget_nbytes

    def _is_short_in(self, gap: Gap) -> bool:
        """Whether memory is short at an op within the gap."""
        footprint = self.residency.footprint[gap.previous + 1 : gap.following]
        return bool(len(footprint)) and int(footprint.max()) > self._budget_nbytes

    def _candidates(self) -> Iterator[Gap]:
        """Yield, for each tensor that could leave, its longest free time where memory is short."""
        least_nbytes = max(1, int(LEAST_SHARE * self._budget_nbytes))
        for tensor in self.residency.graph.tensors:
            if tensor.persistent or tensor.nbytes < least_nbytes:
                continue
            if (gap := self._gap(tensor.id)) is not None:
                yield gap

    def _gap(self, tensor: TensorId) -> Gap | None:
        residency = self.residency
        if tensor in residency.pinned or tensor in residency.absences:
            return None
        accesses = sorted({*residency.table.positions[tensor], *residency.needed.get(tensor, ())})
        gaps = [
            Gap(tensor=tensor, previous=previous, following=following, ops=len(residency.table.order))
            for previous, following in pairwise(accesses)
            if following > previous + 1
        ]
        return max(filter(self._is_short_in, gaps), key=self._free_ns, default=None)

    def _free_ns(self, gap: Gap) -> int:
        """Return the free time FT from the end of the copy out to the start of the copy in (equation 1)."""
        nbytes = self._nbytes(gap.tensor)
        out_end_ns = int(self.residency.end_ns[gap.previous]) + self._link.out_ns(nbytes)
        in_start_ns = int(self.residency.begin_ns[gap.following]) - self._link.in_ns(nbytes)
        return in_start_ns - out_end_ns

    def _hidden_swap(self, gap: Gap) -> Absence | None:
        """Book copies that stall nothing and leave the tensor away where memory is short, or return None."""
        residency, link, nbytes = self.residency, self._link, self._nbytes(gap.tensor)
        left_ns, needed_ns = int(residency.end_ns[gap.previous]), int(residency.begin_ns[gap.following])
        out_ns, in_ns = link.out_ns(nbytes), link.in_ns(nbytes)
        out_start = link.to_host.earliest(left_ns, needed_ns, out_ns)
        if out_start is None:
            return None
        link.to_host.book(out_start, out_ns)
        in_start = link.to_device.latest(out_start + out_ns, needed_ns, in_ns)
        if in_start is not None:
            absence = timed_absence(residency, gap, out_start, out_start + out_ns, in_start)
            if self._short()[absence.begin : absence.end].any():
                link.to_device.book(in_start, in_ns)
                return absence
        link.to_host.unbook(out_start, out_ns)
        return None

    def _stall_ns(self, gap: Gap) -> int:
        """Return how long ops would wait if the tensor were away wherever memory is short in the gap."""
        begin_ns = self.residency.begin_ns
        first, last = self._short_range(gap)
        out_end, in_end = self._copies(gap, last)
        return max(0, out_end - int(begin_ns[first])) + max(0, in_end - int(begin_ns[gap.following]))

    def _short_range(self, gap: Gap) -> tuple[int, int]:
        """Return the first and the last op within the gap at which memory is short."""
        short = np.flatnonzero(self._short()[gap.previous + 1 : gap.following])
        return gap.previous + 1 + int(short[0]), gap.previous + 1 + int(short[-1])

    def _copies(self, gap: Gap, last: int) -> tuple[int, int]:
        """Return when the copies end: out as early as can be, in after the op at `last` but late."""
        residency, link, nbytes = self.residency, self._link, self._nbytes(gap.tensor)
        out_ns, in_ns = link.out_ns(nbytes), link.in_ns(nbytes)
        out_start = link.to_host.earliest(int(residency.end_ns[gap.previous]), _NEVER_NS, out_ns)
        assert out_start is not None
        free_ns = int(residency.end_ns[last])
        in_start = link.to_device.latest(free_ns, int(residency.begin_ns[gap.following]), in_ns)
        if in_start is None:
            in_start = link.to_device.earliest(max(free_ns, out_start + out_ns), _NEVER_NS, in_ns)
        assert in_start is not None
        return out_start + out_ns, in_start + in_ns

    def _least_stall(self, swappable: list[tuple[int, int, TensorId]]) -> tuple[int, Gap] | None:
        """Return the swap at the heap's top once its overhead is up to date, and the overhead."""
        while swappable:
            stall_ns, free_ns, tensor = swappable[0]
            gap = self._gap(tensor)
            if gap is None:
                heapq.heappop(swappable)
                continue
            now_ns = self._stall_ns(gap)
            if now_ns <= stall_ns:
                return now_ns, gap
            heapq.heapreplace(swappable, (now_ns, free_ns, tensor))
        return None

    def _stalling_swap(self, gap: Gap) -> Absence:
        """Book the copies that leave the tensor away wherever memory is short in the gap."""
        link, nbytes = self._link, self._nbytes(gap.tensor)
        first, last = self._short_range(gap)
        out_end, in_end = self._copies(gap, last)
        link.to_host.book(out_end - link.out_ns(nbytes), link.out_ns(nbytes))
        link.to_device.book(in_end - link.in_ns(nbytes), link.in_ns(nbytes))
        # Both copies start when their turn comes: a delay would hold up those behind them.
        return Absence(gap=gap, begin=first, end=last + 1, out_position=gap.previous)

    def _swap(self, absence: Absence) -> None:
        self.residency.add(absence)
        self.swaps.append(absence)

    def _best_recomputation(self, lineages: Lineages) -> Lineage | None:
        while (best := lineages.find_best()) is not None:
            tensor = best.gap.tensor
            if tensor not in self.residency.absences and self._is_short_in(best.gap):
                return best
            # Memory that is not short any more will not be again.
            del lineages.candidates[tensor]
        return None

    def _recompute(self, lineage: Lineage, lineages: Lineages) -> None:
        gap = lineage.gap
        lineages.choose(gap.tensor)
        for source in lineage.sources:
            self.residency.need(source, gap.following)
        self.residency.add(Absence(gap=gap, begin=gap.previous + 1, end=gap.following, recompute=lineage.ops))
        self.recomputed[gap.tensor] = gap

    def _lineage(self, gap: Gap) -> Lineage | None:
        if gap.tensor in self.refused:
            return None
        residency = self.residency
        at = gap.following
        chain = find_chain(residency.table, gap.tensor, at, lambda tensor: self._is_there(tensor, at))
        if chain is None:
            return None
        tensors = residency.graph.tensors
        return Lineage(
            gap=gap,
            nbytes=self._nbytes(gap.tensor),
            sources={tensor for tensor in chain.inputs if not tensors[tensor].persistent},
            ops=chain.ops,
            time_ns=chain.time_ns(self._latencies_ns),
        )

    def _is_there(self, tensor: TensorId, position: int) -> bool:
        """Whether a tensor is on the device before the op at `position`."""
        residency = self.residency
        if residency.graph.tensors[tensor].persistent:
            return True
        if not residency.table.first[tensor] < position <= residency.table.last[tensor]:
            return False
        return not any(
            (absence.gap.previous if absence.recompute else absence.out_position) < position < absence.end
            for absence in residency.absences.get(tensor, ())
        )

    def _update_lineages(self, lineages: Lineages, swapped: TensorId) -> None:
        """Find other sources for the candidates that lack the one that is swapped."""
        lineages.candidates.pop(swapped, None)
        for tensor, lineage in list(lineages.candidates.items()):
            if swapped in lineage.sources and not self._is_there(swapped, lineage.gap.following):
                found = self._lineage(lineage.gap)
                if found is None:
                    del lineages.candidates[tensor]
                else:
                    lineages.candidates[tensor] = found
