"""Recomputation scheduling: free what is cheap to make again, while the peak exceeds the memory.

Source: TENSILE section IV-D; the value is MSPS, memory saved per second of recomputation (equation 4, from
Capuchin). As published, a recomputation reads only tensors that are on the device anyway, and takes only
tensors that no absence has touched.
"""

from dataclasses import dataclass

import numpy as np

from tensile_db.graph import OpId, TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.chains import beyond_fresh_nbytes, find_chain
from tensile_db.scheduler.analysis.residency import Absence, Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """A tensor that could be released in a gap and made again before the gap's end."""

    gap: Gap
    ops: tuple[OpId, ...]
    #: Tensors that must be on the device for it.
    inputs: tuple[TensorId, ...]
    #: Tensors that it makes a second time, and that must not be on their way meanwhile.
    by_products: tuple[TensorId, ...]
    #: The most that the ops hold at once beyond the tensor and what the op after them makes and works with.
    beyond_nbytes: int
    nbytes: int
    time_ns: int

    @property
    def msps(self) -> float:
        """Memory saving per second, in bytes per ns."""
        return self.nbytes / self.time_ns


class Recomputations:
    """What could be recomputed in one job's plan, the most memory saved per second first."""

    def __init__(self, residency: Residency) -> None:
        self._residency = residency
        #: What the graph alone says of each gap.
        self._known: dict[Gap, Recomputation | None] = {}
        tensors, writes = residency.graph.tensors, residency.table.writes
        nbytes = np.array([tensor.nbytes for tensor in tensors], dtype=np.int64)
        time_ns = np.array(
            [sum(residency.latencies_ns[list(positions)].tolist()) for positions in writes], dtype=np.int64
        )
        #: Tensor ids by MSPS, then size, the largest first, then id.
        self._by_msps = np.lexsort((np.arange(len(tensors)), -nbytes, -nbytes / np.maximum(time_ns, 1)))
        self._persistent = np.array([tensor.persistent for tensor in tensors], dtype=bool)

    def find(self) -> Recomputation | None:
        """Return the one of the largest MSPS that lowers the job's peak, or None."""
        residency = self._residency
        peak = residency.peak_position
        held = residency.is_held_at(peak) & ~self._persistent
        for tensor in self._by_msps[held[self._by_msps]].tolist():
            gap = None if tensor in residency.absences else residency.gap_at(tensor, peak)
            if gap is None:
                continue
            if gap not in self._known:
                self._known[gap] = _recomputation(residency, gap)
            candidate = self._known[gap]
            if candidate is not None and _is_possible(residency, candidate):
                return candidate
        return None


def schedule_recomputation(residency: Residency, chosen: Recomputation) -> None:
    """Release the tensor in its gap, make it again at the end, and keep its inputs until then."""
    following = chosen.gap.following
    residency.add(Absence(gap=chosen.gap, begin=chosen.gap.previous + 1, end=following, recompute=chosen.ops))
    residency.charge_op(following, chosen.beyond_nbytes)
    for tensor in chosen.inputs:
        residency.need(tensor, following)
    residency.pinned.update(chosen.by_products)


def _is_possible(residency: Residency, candidate: Recomputation) -> bool:
    """Whether nothing planned so far takes an input away, and making the tensor again is no new peak."""
    if any(tensor in residency.absences for tensor in (*candidate.inputs, *candidate.by_products)):
        return False
    there_nbytes = residency.footprint[candidate.gap.following]
    return bool(there_nbytes + candidate.beyond_nbytes <= residency.peak_nbytes)


def _recomputation(residency: Residency, gap: Gap) -> Recomputation | None:
    """Return what the graph alone allows: producers that may run again, and inputs that live until then."""
    graph, table, tensor = residency.graph, residency.table, gap.tensor

    def lives(other: TensorId) -> bool:
        return graph.tensors[other].persistent or table.first[other] < gap.following <= table.last[other]

    writers = table.writes[tensor]
    if gap.wraps or graph.tensors[tensor].persistent or not writers or writers[-1] > gap.previous:
        return None
    chain = find_chain(table, tensor, gap.following, lives, max_ops=len(writers))
    if chain is None:
        return None
    return Recomputation(
        gap=gap,
        ops=chain.ops,
        inputs=chain.inputs,
        by_products=tuple(other for other in chain.by_products if lives(other)),
        beyond_nbytes=beyond_fresh_nbytes(table, gap.following, chain.extra_nbytes),
        nbytes=graph.tensors[tensor].nbytes,
        time_ns=int(sum(residency.latencies_ns[position] for position in writers)),
    )
