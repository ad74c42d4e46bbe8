"""Recomputations made final, and those that pass through each other done together.

Source: Capuchin section 5.3, collective recomputation: what a recomputation passes through and is wanted
later stays, the latest first, as far as memory allows.
Differs: the paper decides while it runs; here the footprint that is planned tells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.settling.restoring import Restoration, find_restorations, schedule_restorations


def plan_collectively(
    fresh: Sequence[Residency],
    swaps: Sequence[Absence],
    recomputed: Mapping[TensorId, Gap],
    budget_nbytes: int,
    *,
    collective: bool = True,
) -> Residency:
    """Return the state with all swaps and with those recomputations that are possible beside each other.

    fresh: two states in which nothing is planned yet; used up.
    collective: whether recomputations share what they make.
    """
    each, together = fresh
    gaps = list(recomputed.values())
    restorations = _plan(each, swaps, gaps)
    if not collective:
        return each
    merged = _merged(each, restorations, budget_nbytes)
    if merged == [restoration.gap for restoration in restorations]:
        return each
    _plan(together, swaps, merged)
    return together if together.peak_nbytes <= max(budget_nbytes, each.peak_nbytes) else each


def _plan(residency: Residency, swaps: Sequence[Absence], gaps: Sequence[Gap]) -> list[Restoration]:
    restored_before = {gap.following for gap in gaps}
    for absence in swaps:
        begin = absence.begin
        # Before an op that is preceded by a recomputation, nothing says which comes first, that or the wait.
        while begin in restored_before:
            begin += 1
        if begin < absence.end:
            residency.add(replace(absence, begin=begin))
    restorations = find_restorations(residency, gaps)
    schedule_restorations(residency, restorations)
    # The recomputations that are possible, not those that were chosen, tell until when a swapped tensor is
    # needed.
    for absence in residency.swaps():
        gap = residency.gap_at(absence.tensor, absence.begin)
        if gap is not None:
            residency.replace(absence, replace(absence, gap=gap))
    return restorations


def _merged(residency: Residency, restorations: Sequence[Restoration], budget_nbytes: int) -> list[Gap]:
    """Return the gaps with those closed earlier whose tensors another recomputation makes on its way."""
    spare = budget_nbytes - residency.footprint
    gaps = {restoration.gap.tensor: restoration.gap for restoration in restorations}
    for restoration in restorations:
        at = restoration.gap.following
        for tensor in sorted(restoration.chain.by_products, reverse=True):
            gap = gaps.get(tensor)
            if gap is None or not gap.previous < at < gap.following:
                continue
            nbytes = residency.graph.tensors[tensor].nbytes
            if int(spare[at : gap.following].min()) >= nbytes:
                spare[at : gap.following] -= nbytes
                gaps[tensor] = gap._replace(following=at)
    return [gaps[restoration.gap.tensor] for restoration in restorations]
