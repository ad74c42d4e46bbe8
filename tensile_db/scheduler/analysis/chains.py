"""Recomputation chains: which ops to run again so that a tensor gets back the value it had.

A chain begins at tensors that are on the device anyway and may lead over many others that are not. In-place
ops are followed writer by writer: what a batch norm made and `relu_` changed takes both ops, in order.

Source: Capuchin section 4.4 (lineage, and which of its tensors can serve as a source).
Differs: the paper's tensors are values, written once; here they are storages, so a chain also asks whether a
source still has the value that its reader saw.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tensile_db.graph import Op, OpId, TensorId
from tensile_db.scheduler.analysis.accesses import AccessTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Ops that restore a tensor just before the op at some position, if run again in this order."""

    tensor: TensorId
    #: In order; the last one writes the tensor.
    ops: tuple[OpId, ...]
    #: Tensors, ascending, that must be on the device, and not on their way, while the ops run.
    inputs: tuple[TensorId, ...]
    #: What the ops make beside the tensor, ascending, persistent tensors left aside.  Where it is on the
    #: device it stays and has the same value after, else it is freed with the last op.  None of it may be on
    #: the host.
    by_products: tuple[TensorId, ...]
    #: The most that the ops hold at once beyond what was on the device before and the tensor itself.
    extra_nbytes: int

    def time_ns(self, latencies_ns: Sequence[int]) -> int:
        """Return the time of the ops; latencies_ns: by op id, shape (ops,)."""
        return int(sum(latencies_ns[op] for op in self.ops))


def find_chain(
    table: AccessTable,
    tensor: TensorId,
    before: int,
    available: Callable[[TensorId], bool],
    *,
    max_ops: int | None = None,
) -> Chain | None:
    """Return the shortest chain that restores a tensor before the op at `before`, or None.

    available: whether a tensor is on the device there, with the value it has there; asked of persistent
    tensors too, never of `tensor`.  None: an op of the lineage must not run twice, a source has changed since
    or is a persistent tensor away, something on the device would be left with an older value, or the chain
    would have more than `max_ops` ops.
    """
    search = _Search(table, tensor, before, available)
    positions = search.positions(max_ops)
    if not positions:
        return None
    ops = [table.graph.ops[table.order[position]] for position in sorted(positions)]
    made = {other for op in ops for other in op.writes if not table.graph.tensors[other].persistent}
    by_products = sorted(made - {tensor})
    there = {other for other in by_products if available(other)}
    for other in there:
        if any(position < before and position not in positions for position in table.writes[other]):
            return None
    return Chain(
        tensor=tensor,
        ops=tuple(op.id for op in ops),
        inputs=tuple(sorted(search.inputs)),
        by_products=tuple(by_products),
        extra_nbytes=_peak_nbytes(table, ops, there) - table.graph.tensors[tensor].nbytes,
    )


def beyond_fresh_nbytes(table: AccessTable, position: int, nbytes: int) -> int:
    """Return by how much chains before an op, which hold so many bytes beside its tensors, exceed that op.

    What the op works with and first makes is not there yet while they run.
    """
    op, tensors = table.graph.ops[table.order[position]], table.graph.tensors
    made = (tensor for tensor in op.writes if table.first[tensor] == position)
    fresh_nbytes = sum(tensors[tensor].nbytes for tensor in made if not tensors[tensor].persistent)
    return max(0, nbytes - op.workspace_nbytes - fresh_nbytes)


class _Search:
    """The lineage of one tensor, followed back to what is available."""

    def __init__(
        self, table: AccessTable, tensor: TensorId, before: int, available: Callable[[TensorId], bool]
    ) -> None:
        self._table = table
        self._tensor = tensor
        self._before = before
        self._available = available
        self.inputs: set[TensorId] = set()

    def positions(self, max_ops: int | None) -> set[int]:
        """Return the positions of the ops to run again; empty where there is no chain."""
        graph, table = self._table.graph, self._table
        if graph.tensors[self._tensor].persistent:
            return set()
        found: set[int] = set()
        #: Per tensor, the position up to which its writers have been found.
        followed: dict[TensorId, int] = {}
        wanted = [(self._tensor, self._before)]
        while wanted:
            tensor, read_at = wanted.pop()
            begin = followed.get(tensor, -1)
            if read_at <= begin:
                continue
            if self._is_input(tensor, read_at):
                self.inputs.add(tensor)
                continue
            if graph.tensors[tensor].persistent:
                return set()
            followed[tensor] = read_at
            for position in table.writes[tensor]:
                if not begin <= position < read_at or position in found:
                    continue
                op = graph.ops[table.order[position]]
                if not op.recomputable or len(found) == max_ops:
                    return set()
                found.add(position)
                for read in op.reads:
                    if not self._is_updated_by(op, read):
                        wanted.append((read, position))
                    elif self._available(read):
                        self.inputs.add(read)
                    else:
                        return set()
        return found

    def _is_input(self, tensor: TensorId, read_at: int) -> bool:
        """Whether a tensor is there with the value that the op at `read_at` read."""
        return (
            tensor != self._tensor
            and not self._table.is_written_between(tensor, read_at - 1, self._before)
            and self._available(tensor)
        )

    def _is_updated_by(self, op: Op, tensor: TensorId) -> bool:
        """Whether an op updates a persistent tensor: its second run does not."""
        return tensor in op.writes and self._table.graph.tensors[tensor].persistent


def _peak_nbytes(table: AccessTable, ops: Sequence[Op], there: set[TensorId]) -> int:
    """Return the most that the ops hold beyond what is there; what they make is freed only after the last."""
    tensors = table.graph.tensors
    held, peak = 0, 0
    made = set(there)
    for op in ops:
        running = op.workspace_nbytes
        for tensor in op.writes:
            if tensors[tensor].persistent:
                continue
            if tensor not in made:
                made.add(tensor)
                held += tensors[tensor].nbytes
            elif tensor not in op.reads:
                # A second run makes anew also what is there; both exist until it has ended.
                running += tensors[tensor].nbytes
        peak = max(peak, held + running)
    return peak
