"""Many tensors released and recomputed, each by a chain that holds in the presence of all others.

Whether a chain can begin at a tensor depends on what else is away, and for how long.  So the gaps are settled
together: by the order in which tensors come back, then as long as one of them cannot be, without that one.

Source: Capuchin sections 4.4 and 4.5 (recomputation sources change with what else is recomputed) and 5.3
(collective recomputation).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.chains import Chain, beyond_fresh_nbytes, find_chain
from tensile_db.scheduler.analysis.residency import Absence, Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """A tensor released after the op at `gap.previous` and recomputed before the op at `gap.following`.

    `gap.following` need not be an access: a tensor may come back earlier, with others.
    """

    gap: Gap
    chain: Chain


def find_restorations(
    residency: Residency,
    gaps: Sequence[Gap],
    *,
    kept_until: Mapping[TensorId, int] | None = None,
    allowed: Callable[[Chain], bool] = lambda chain: True,
) -> list[Restoration]:
    """Return how the tensors of the gaps are recomputed, in order; gaps that nothing restores are left out.

    gaps: at most one each for a tensor.  kept_until: for tensors that are held beyond their last access, the
    position up to which.  allowed: which chains are acceptable.
    """
    open_gaps = [gap for gap in gaps if gap.following > gap.previous + 1]
    settled = sorted(open_gaps, key=lambda gap: (gap.following, _last_write(residency, gap)))
    while True:
        search = _Search(residency, settled, kept_until or {})
        chains = [search.chain(gap) for gap in settled]
        found = [
            Restoration(gap=gap, chain=chain)
            for gap, chain in zip(settled, chains, strict=True)
            if chain is not None and allowed(chain)
        ]
        if len(found) == len(settled):
            return found
        settled = [restoration.gap for restoration in found]


def schedule_restorations(residency: Residency, restorations: Sequence[Restoration]) -> None:
    """Release and recompute, in the order given, and hold the chains' inputs for them."""
    table = residency.table
    for restoration in restorations:
        gap, chain = restoration.gap, restoration.chain
        residency.add(Absence(gap=gap, begin=gap.previous + 1, end=gap.following, recompute=chain.ops))
        for tensor in chain.inputs:
            _hold_until(residency, tensor, gap.following)
        residency.pinned.update(
            other for other in chain.by_products if table.first[other] < gap.following <= table.last[other]
        )
    _charge_chains(residency, restorations)


def _hold_until(residency: Residency, tensor: TensorId, position: int) -> None:
    """Note that a tensor is needed, and charge what it holds beyond its last access."""
    if not residency.graph.tensors[tensor].persistent:
        last = max(int(residency.table.last[tensor]), *residency.needed.get(tensor, (-1,)))
        for later in range(last + 1, position + 1):
            residency.charge_op(later, residency.graph.tensors[tensor].nbytes)
    residency.need(tensor, position)


def _charge_chains(residency: Residency, restorations: Sequence[Restoration]) -> None:
    """Charge the ops before which chains hold more than those ops will."""
    graph, table = residency.graph, residency.table
    #: By position: bytes restored by the chains from the one at hand on, and the most that a chain exceeds
    #: them.
    restored: dict[int, int] = {}
    extra: dict[int, int] = {}
    for restoration in reversed(restorations):
        position = restoration.gap.following
        later = restored.get(position, 0)
        extra[position] = max(extra.get(position, 0), restoration.chain.extra_nbytes - later)
        restored[position] = later + graph.tensors[restoration.gap.tensor].nbytes
    for position, nbytes in extra.items():
        residency.charge_op(position, beyond_fresh_nbytes(table, position, nbytes))


def _last_write(residency: Residency, gap: Gap) -> int:
    return max((p for p in residency.table.writes[gap.tensor] if p <= gap.previous), default=-1)


class _Search:
    """Which tensors are on the device when a gap's tensor comes back, given the other gaps."""

    def __init__(self, residency: Residency, gaps: Sequence[Gap], kept_until: Mapping[TensorId, int]) -> None:
        self._residency = residency
        self._gaps = {gap.tensor: (rank, gap) for rank, gap in enumerate(gaps)}
        self._kept_until = kept_until

    def chain(self, gap: Gap) -> Chain | None:
        rank, _ = self._gaps[gap.tensor]
        position = gap.following
        chain = find_chain(
            self._residency.table, gap.tensor, position, lambda tensor: self._is_there(tensor, position, rank)
        )
        # A copy back that was triggered may not have begun; it has surely ended only when an op has waited
        # for it.
        if chain is None or any(self._is_swapped(t, position, until_read=True) for t in chain.by_products):
            return None
        return chain

    def _is_there(self, tensor: TensorId, position: int, rank: int) -> bool:
        table = self._residency.table
        if not self._residency.graph.tensors[tensor].persistent:
            last = max(int(table.last[tensor]), self._kept_until.get(tensor, -1))
            if not table.first[tensor] < position <= last:
                return False
        if self._is_swapped(tensor, position):
            return False
        other_rank, gap = self._gaps.get(tensor, (-1, None))
        if gap is None or not gap.previous < position <= gap.following:
            return True
        return position == gap.following and other_rank < rank

    def _is_swapped(self, tensor: TensorId, position: int, *, until_read: bool = False) -> bool:
        """Whether the tensor is on the host or on its way there, or with `until_read` on its way back."""
        return any(
            absence.out_position < at < (absence.gap.following + 1 if until_read else absence.end)
            for absence in self._residency.absences.get(tensor, ())
            for at in (position, position + absence.gap.ops)
            if not absence.recompute
        )
