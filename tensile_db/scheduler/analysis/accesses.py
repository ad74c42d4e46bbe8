"""Tensor access sequences: which op touches which tensor, and from where to where it lives.

Positions are places in the plan's op order, 0-based; a position n means the iteration's end.

Source: TENSILE sections III-A, III-C and IV-A.  The first write of a tensor is its generating access (TGA),
every other access a using access (TUA).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import OpId, StepGraph, TensorId


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The idle stretch of a tensor between two accesses.

    Ops strictly between `previous` and `following` do not touch the tensor.  A gap over the iteration's end
    (persistent tensors only) is unrolled: `following` is the position in the next iteration plus `ops`.
    """

    tensor: TensorId
    previous: int
    following: int
    #: Ops of one iteration.
    ops: int

    @property
    def wraps(self) -> bool:
        """Whether the gap goes over the iteration's end."""
        return self.following >= self.ops

    def unrolled(self, position: int) -> int:
        """Return a position within one iteration as this gap counts it."""
        return position if position > self.previous else position + self.ops


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessTable:
    """Accesses of every tensor in one op order."""

    graph: StepGraph
    order: tuple[OpId, ...]
    #: Per tensor: ascending positions of the ops that read or write it.
    positions: tuple[tuple[int, ...], ...]
    #: Per tensor: ascending positions of the ops that write it.
    writes: tuple[tuple[int, ...], ...]
    #: Per tensor: first and last position; shape (tensors,), -1 where it is never accessed.
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    def gap_at(self, tensor: TensorId, position: int, extra: Sequence[int] = ()) -> Gap | None:
        """Return the gap that covers `position`, or None where the tensor is in use or not alive there.

        extra: further positions where the tensor is needed, e.g. by a recomputation.
        """
        accesses = self.positions[tensor] if not extra else tuple(sorted({*self.positions[tensor], *extra}))
        if not accesses:
            return None
        index = bisect_left(accesses, position)
        if index < len(accesses) and accesses[index] == position:
            return None
        if 0 < index < len(accesses):
            return Gap(
                tensor=tensor, previous=accesses[index - 1], following=accesses[index], ops=len(self.order)
            )
        if not self.graph.tensors[tensor].persistent:
            return None
        return Gap(
            tensor=tensor, previous=accesses[-1], following=accesses[0] + len(self.order), ops=len(self.order)
        )

    def is_written_between(self, tensor: TensorId, after: int, before: int) -> bool:
        """Whether an op at a position in (after, before) writes the tensor."""
        writes = self.writes[tensor]
        return bisect_left(writes, before) > bisect_right(writes, after)


def access_table(graph: StepGraph, order: Sequence[OpId] | None = None) -> AccessTable:
    """Return the accesses of every tensor; without an order, in eager's."""
    ops = tuple(order) if order is not None else tuple(op.id for op in graph.ops)
    positions: list[list[int]] = [[] for _ in graph.tensors]
    writes: list[list[int]] = [[] for _ in graph.tensors]
    for position, op_id in enumerate(ops):
        op = graph.ops[op_id]
        for tensor in sorted({*op.reads, *op.writes}):
            positions[tensor].append(position)
        for tensor in op.writes:
            writes[tensor].append(position)
    return AccessTable(
        graph=graph,
        order=ops,
        positions=tuple(map(tuple, positions)),
        writes=tuple(map(tuple, writes)),
        first=np.array([p[0] if p else -1 for p in positions], dtype=np.int64),
        last=np.array([p[-1] if p else -1 for p in positions], dtype=np.int64),
    )


def footprint_after_activity_analysis(table: AccessTable) -> NDArray[np.int64]:
    """Return the device bytes held during each op, shape (ops,), if each tensor is freed at its last use.

    Persistent tensors are held throughout; an op's workspace counts while it runs.
    Source: TENSILE section IV-C, activity analysis.
    """
    graph = table.graph
    steps = np.zeros(len(table.order) + 1, dtype=np.int64)
    persistent = 0
    for tensor in graph.tensors:
        if tensor.persistent:
            persistent += tensor.nbytes
        elif table.first[tensor.id] >= 0:
            steps[table.first[tensor.id]] += tensor.nbytes
            steps[table.last[tensor.id] + 1] -= tensor.nbytes
    workspace = np.array([graph.ops[op].workspace_nbytes for op in table.order], dtype=np.int64)
    return np.cumsum(steps)[:-1] + persistent + workspace
