"""Passive swaps: the last resort, where copies may make ops wait, so that a budget is met at all.

Source: TENSILE sections III-D ("the Executor will pause the computation and swap the tensors into the GPU memory")
and V-F, which counts passive swap-ins among the overheads of extreme shortage.
Differs: the paper meets shortage at run time; here the same swaps are planned, so that the guaranteed peak holds.
"""

from tensile_db.graph import TensorId
from tensile_db.scheduler.accesses import Gap
from tensile_db.scheduler.channels import Link
from tensile_db.scheduler.residency import Absence, Residency, shortest_absence


def evict_to_budget(residency: Residency, link: Link, budget_nbytes: int) -> bool:
    """Swap idle tensors out wherever the footprint exceeds the budget; return whether it is met everywhere."""
    while residency.peak_nbytes > budget_nbytes:
        if not _evict_one(residency, link, residency.peak_position):
            return False
    return True


def _evict_one(residency: Residency, link: Link, position: int) -> bool:
    """Take off the tensor whose absence at `position` stalls least for the bytes it frees."""
    best: tuple[float, int, TensorId] | None = None
    chosen: tuple[Absence | None, Absence] | None = None
    for tensor in residency.held_at(position):
        nbytes = residency.graph.tensors[tensor].nbytes
        gap = residency.gap_at(tensor, position) if nbytes else None
        if gap is None:
            continue
        old = residency.absence_in(gap)
        if old is not None and old.recompute:
            continue
        new = shortest_absence(gap, position) if old is None else old.extended_to(position)
        cost = (_stall_ns(residency, link, gap, new) / nbytes, -nbytes, tensor)
        if best is None or cost < best:
            best, chosen = cost, (old, new)
    if chosen is None:
        return False
    old, new = chosen
    if old is None:
        residency.add(new)
    else:
        residency.replace(old, new)
    return True


def _stall_ns(residency: Residency, link: Link, gap: Gap, absence: Absence) -> int:
    """Estimate how long ops would wait for the two copies, other copies left aside."""
    nbytes = residency.graph.tensors[gap.tensor].nbytes
    out_window_ns = _between_ns(residency, gap.previous, absence.begin)
    in_window_ns = _between_ns(residency, absence.end - 1, gap.following)
    return max(0, link.out_ns(nbytes) - out_window_ns) + max(0, link.in_ns(nbytes) - in_window_ns)


def _between_ns(residency: Residency, after: int, before: int) -> int:
    """Return the time from an op's end to another's begin; positions unrolled."""
    ops = len(residency.footprint)
    period_ns = int(residency.end_ns[-1])
    end_ns = int(residency.end_ns[after % ops]) + period_ns * (after // ops)
    begin_ns = int(residency.begin_ns[before % ops]) + period_ns * (before // ops)
    return begin_ns - end_ns
