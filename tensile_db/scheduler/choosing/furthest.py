"""Swaps that meet every budget from the bound on, in one pass over the ops: the last resort of all.

Where the footprint exceeds the budget, idle tensors leave until they are needed again, those first that are
needed furthest in the future.

Source: Belady, "A study of replacement algorithms for a virtual-storage computer", 1966 (MIN).
Differs: tensors differ in size, the larger first of those that are needed at the same op; the sequence is a
cycle, so that what is away at an iteration's end is away at the next one's start.
"""

import numpy as np

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.residency import Residency, shortest_absence


def evict_furthest(residency: Residency, budget_nbytes: int) -> bool:
    """Swap idle tensors out at every op that exceeds the budget; return whether that is met.

    It is met where nothing is recomputed or pinned, and no op's own tensors and workspace exceed it.
    """
    footprint, position = residency.footprint, 0
    while (above := np.nonzero(footprint[position:] > budget_nbytes)[0]).size:
        position += int(above[0])
        for gap in _idle_at(residency, position):
            if footprint[position] <= budget_nbytes:
                break
            _leave(residency, gap, gap.unrolled(position))
        if footprint[position] > budget_nbytes:
            return False
    return True


def _idle_at(residency: Residency, position: int) -> list[Gap]:
    """Return the gaps of the tensors that are idle on the device during an op, who leaves first first."""
    tensors = residency.graph.tensors
    gaps = []
    for tensor in residency.held_at(position):
        gap = residency.gap_at(tensor, position) if tensors[tensor].nbytes else None
        if gap is not None:
            gaps.append(gap)

    def furthest_first(gap: Gap) -> tuple[int, int, TensorId]:
        return gap.unrolled(position) - gap.following, -tensors[gap.tensor].nbytes, gap.tensor

    return sorted(gaps, key=furthest_first)


def _leave(residency: Residency, gap: Gap, first: int) -> None:
    """Take a gap's tensor off the device from a position on, unrolled, until it is needed again."""
    last = gap.following - 1
    old = residency.absence_in(gap)
    if old is None:
        residency.add(shortest_absence(gap, first, last))
    else:
        residency.replace(old, old.extended_over(first, last))
