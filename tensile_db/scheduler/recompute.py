"""Recomputation scheduling: free what is cheap to make again, while the peak exceeds the memory.

Source: TENSILE section IV-D; the value is MSPS, memory saved per second of recomputation (equation 4, from Capuchin).
As published, a recomputation reads only tensors that are on the device anyway, and takes only tensors that no
absence has touched.
"""

from dataclasses import dataclass

from tensile_db.graph import OpId, TensorId
from tensile_db.scheduler.accesses import Gap
from tensile_db.scheduler.residency import Absence, Residency


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """A tensor that could be released in a gap and made again before the gap's end."""

    gap: Gap
    ops: tuple[OpId, ...]
    #: Tensors that must be on the device for it.
    inputs: tuple[TensorId, ...]
    #: Tensors that it makes a second time, and that must not be on their way meanwhile.
    by_products: tuple[TensorId, ...]
    #: What the ops make besides the tensor, while they run.
    extra_nbytes: int
    nbytes: int
    time_ns: int

    @property
    def msps(self) -> float:
        """Memory saving per second, in bytes per ns."""
        return self.nbytes / self.time_ns


def find_recomputation(residency: Residency) -> Recomputation | None:
    """Return the recomputation of the largest MSPS that lowers the job's peak, or None. Mutates nothing."""
    peak = residency.peak_position
    best: Recomputation | None = None
    for tensor in residency.held_at(peak):
        candidate = _recomputation(residency, tensor, peak)
        if candidate is not None and (best is None or candidate.msps > best.msps):
            best = candidate
    return best


def schedule_recomputation(residency: Residency, chosen: Recomputation) -> None:
    """Release the tensor in its gap, make it again at the end, and keep its inputs until then."""
    following = chosen.gap.following
    residency.add(
        Absence(gap=chosen.gap, begin=chosen.gap.previous + 1, end=following, recompute=chosen.ops)
    )
    residency.charge_op(following, chosen.extra_nbytes)
    residency.recomputed_before.add(following)
    for tensor in chosen.inputs:
        residency.need(tensor, following)
    residency.pinned.update(chosen.by_products)


def _recomputation(residency: Residency, tensor: TensorId, peak: int) -> Recomputation | None:
    graph, table = residency.graph, residency.table
    if graph.tensors[tensor].persistent or tensor in residency.absences or not graph.tensors[tensor].nbytes:
        return None
    gap = residency.gap_at(tensor, peak)
    if gap is None or gap.wraps or not table.writes[tensor] or table.writes[tensor][-1] > gap.previous:
        return None
    writers = table.writes[tensor]
    made = {other for position in writers for other in graph.ops[table.order[position]].writes}
    inputs: set[TensorId] = set()
    by_products: set[TensorId] = set()
    extra_nbytes = workspace_nbytes = 0
    for position in writers:
        op = graph.ops[table.order[position]]
        if not op.recomputable:
            return None
        for read in op.reads:
            if read == tensor:
                continue
            if read in made or not _is_there_again(residency, read, position, gap.following):
                return None
            inputs.add(read)
        for other in op.writes:
            if other == tensor or graph.tensors[other].persistent:
                continue
            # What else an op makes exists twice while it runs, even where the first value is still there.
            extra_nbytes += graph.tensors[other].nbytes
            if int(table.last[other]) > gap.following:
                if other in residency.absences:
                    return None
                by_products.add(other)
        workspace_nbytes = max(workspace_nbytes, op.workspace_nbytes)
    extra_nbytes += workspace_nbytes
    if residency.footprint[gap.following] + extra_nbytes > residency.peak_nbytes:
        return None
    return Recomputation(
        gap=gap,
        ops=tuple(table.order[position] for position in writers),
        inputs=tuple(sorted(inputs)),
        by_products=tuple(sorted(by_products)),
        extra_nbytes=extra_nbytes,
        nbytes=graph.tensors[tensor].nbytes,
        time_ns=int(sum(residency.latencies_ns[table.order[position]] for position in writers)),
    )


def _is_there_again(residency: Residency, tensor: TensorId, read_at: int, again_at: int) -> bool:
    """Whether a tensor holds at `again_at` the value it had at `read_at`, on the device and never away."""
    table = residency.table
    if tensor in residency.absences or table.is_written_between(tensor, read_at, again_at):
        return False
    alive = residency.graph.tensors[tensor].persistent or int(table.last[tensor]) >= again_at
    return alive and not _is_written_at(residency, tensor, again_at, read_at)


def _is_written_at(residency: Residency, tensor: TensorId, position: int, read_at: int) -> bool:
    """Whether the first run of the op read a value that its own write has changed since."""
    return read_at in residency.table.writes[tensor] and read_at < position
