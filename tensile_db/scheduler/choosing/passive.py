"""Passive swaps: the last resort, where copies may make ops wait, so that a budget is met at all.

Source: TENSILE sections III-D ("the Executor will pause the computation and swap the tensors into the GPU
memory") and V-F, which counts passive swap-ins among the overheads of extreme shortage.
Differs: the paper meets shortage at run time; here the same swaps are planned, so that the guaranteed peak
holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.changes import Changes
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence, Residency, shortest_absence

#: How far a tensor stays away from neighbours above the budget too: further would stall more than it spares.
MAX_STRETCH_OPS = 16
#: Candidates looked at first, the largest ones; of the many small ones as many times more, and again, as
#: long as these do not suffice.
FIRST_CANDIDATES = 128
_TIMES_MORE = 4


def evict_to_budget(residency: Residency, link: Link, budget_nbytes: int) -> bool:
    """Swap idle tensors out wherever the footprint exceeds the budget; return whether it is met."""
    while residency.peak_nbytes > budget_nbytes:
        if not _meet_at(residency, link, residency.peak_position, budget_nbytes):
            return False
    return True


def _meet_at(residency: Residency, link: Link, position: int, budget_nbytes: int) -> bool:
    held, count = residency.held_at(position), FIRST_CANDIDATES
    while tensors := list(islice(held, count)):
        if evict_at(residency, link, position, budget_nbytes, tensors):
            return True
        count *= _TIMES_MORE
    # What has left made the stretches above the budget shorter: some may be able to leave now.
    return evict_at(residency, link, position, budget_nbytes, list(residency.held_at(position)))


def evict_at(
    residency: Residency,
    link: Link,
    position: int,
    budget_nbytes: int,
    tensors: Sequence[TensorId],
    *,
    changes: Changes | None = None,
) -> bool:
    """Take off at `position` what stalls least for the bytes it frees; return whether it suffices.

    changes: of this residency, where it may have to be undone.
    """
    for eviction in find_evictions(residency, link, position, budget_nbytes, tensors):
        if residency.footprint[position] <= budget_nbytes:
            break
        evict(changes or residency, eviction)
    return bool(residency.footprint[position] <= budget_nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A swap for which ops may have to wait."""

    #: What was planned in the same gap before.
    old: Absence | None
    new: Absence
    stall_ns: int
    nbytes: int


def evict(residency: Residency | Changes, eviction: Eviction) -> None:
    """Take a tensor off, or off for longer."""
    if eviction.old is None:
        residency.add(eviction.new)
    else:
        residency.replace(eviction.old, eviction.new)


def find_evictions(
    residency: Residency, link: Link, position: int, budget_nbytes: int, tensors: Sequence[TensorId]
) -> Iterator[Eviction]:
    """Yield what could be taken off at `position`, least stall for the bytes that it frees first.

    Other tensors may be taken off meanwhile.
    """
    # Neighbours above the budget need room as well: what leaves stays away from them too.
    before = _stretch(residency.footprint[position::-1], budget_nbytes)
    after = _stretch(residency.footprint[position:], budget_nbytes)
    #: Stall for the bytes freed, bytes negated, tensor; then the swap, not made before it is asked for.
    possible: list[tuple[float, int, TensorId, Gap, Absence | None, int, int, int]] = []
    for tensor in tensors:
        nbytes = residency.graph.tensors[tensor].nbytes
        gap = residency.gap_at(tensor, position) if nbytes else None
        if gap is None:
            continue
        old = residency.absence_in(gap)
        if old is not None and old.recompute:
            continue
        at = gap.unrolled(position)
        first, last = max(at - before, gap.previous + 1), min(at + after, gap.following - 1)
        begin, end = min(first, gap.ops), last + 1
        if old is not None:
            begin, end = min(old.begin, first), max(old.end, end)
        stall_ns = _stall_ns(residency, link, gap, begin, end)
        possible.append((stall_ns / nbytes, -nbytes, tensor, gap, old, first, last, stall_ns))
    possible.sort(key=itemgetter(0, 1, 2))
    for _, negated_nbytes, _, gap, old, first, last, stall_ns in possible:
        new = shortest_absence(gap, first, last) if old is None else old.extended_over(first, last)
        yield Eviction(old=old, new=new, stall_ns=stall_ns, nbytes=-negated_nbytes)


def _stretch(footprint: NDArray[np.int64], budget_nbytes: int) -> int:
    """Return how many ops after the first one exceed the budget without a break."""
    within = footprint <= budget_nbytes
    return min(MAX_STRETCH_OPS, int(within.argmax() if within.any() else len(within)) - 1)


def _stall_ns(residency: Residency, link: Link, gap: Gap, begin: int, end: int) -> int:
    """Estimate how long ops would wait for both copies of an absence [begin, end), others left aside."""
    nbytes = residency.graph.tensors[gap.tensor].nbytes
    out_window_ns = _between_ns(residency, gap.previous, begin)
    in_window_ns = _between_ns(residency, end - 1, gap.following)
    return max(0, link.out_ns(nbytes) - out_window_ns) + max(0, link.in_ns(nbytes) - in_window_ns)


def _between_ns(residency: Residency, after: int, before: int) -> int:
    """Return the time from an op's end to another's begin; positions unrolled."""
    ops = len(residency.footprint)
    period_ns = int(residency.end_ns[-1])
    end_ns = int(residency.end_ns[after % ops]) + period_ns * (after // ops)
    begin_ns = int(residency.begin_ns[before % ops]) + period_ns * (before // ops)
    return begin_ns - end_ns
