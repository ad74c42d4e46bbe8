"""Tensor access sequences: which op touches which tensor, and from where to where it lives.

Positions are places in the plan's op order, 0-based; a position n means the iteration's end.

Source: TENSILE sections III-A, III-C and IV-A.  The first write of a tensor is its generating access (TGA),
every other access a using access (TUA).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.once import once_for_each

#: Orders of a graph whose accesses are kept.
_KEPT_ORDERS = 8


class Gap(NamedTuple):
    """The idle stretch of a tensor between two accesses.

    Ops strictly between `previous` and `following` do not touch the tensor.  A gap over the iteration's end
    (persistent tensors only) is unrolled: `following` is the position in the next iteration plus `ops`.

    Made and looked up by the thousand for each plan: a tuple takes a third of a dataclass's time.
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
    return _tables_of(graph)(None if order is None else tuple(order))


class _Touches:
    """Pairs of tensor and op, ascending by tensor."""

    def __init__(self, pairs: Sequence[tuple[TensorId, OpId]], tensors: int) -> None:
        self._tensors, self._ops = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2).T
        self._begins: list[int] = self._tensors.searchsorted(np.arange(tensors + 1)).tolist()

    def positions(self, position: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
        """Return, per tensor, the ascending positions of its ops; position: by op id, shape (ops,)."""
        at = position[self._ops]
        ascending: list[int] = at[np.lexsort((at, self._tensors))].tolist()
        return tuple(tuple(ascending[begin:end]) for begin, end in pairwise(self._begins))


@once_for_each
def _tables_of(graph: StepGraph) -> Callable[[tuple[OpId, ...] | None], AccessTable]:
    count = len(graph.tensors)
    touches = _Touches([(tensor, op.id) for op in graph.ops for tensor in {*op.reads, *op.writes}], count)
    written = _Touches([(tensor, op.id) for op in graph.ops for tensor in op.writes], count)
    eager = tuple(op.id for op in graph.ops)

    @lru_cache(maxsize=_KEPT_ORDERS)
    def table(order: tuple[OpId, ...] | None) -> AccessTable:
        ops = eager if order is None else order
        position = np.empty(len(ops), dtype=np.int64)
        position[np.array(ops, dtype=np.int64)] = np.arange(len(ops))
        positions = touches.positions(position)
        return AccessTable(
            graph=graph,
            order=ops,
            positions=positions,
            writes=written.positions(position),
            first=np.array([p[0] if p else -1 for p in positions], dtype=np.int64),
            last=np.array([p[-1] if p else -1 for p in positions], dtype=np.int64),
        )

    return table


def footprint_after_activity_analysis(table: AccessTable) -> NDArray[np.int64]:
    """Return the device bytes held during each op, shape (ops,), if each tensor is freed at its last use.

    Persistent tensors are held throughout; an op's workspace counts while it runs.
    Source: TENSILE section IV-C, activity analysis.
    """
    sizes = sizes_of(table.graph)
    passing = ~sizes.persistent & (table.first >= 0)
    steps = np.zeros(len(table.order) + 1, dtype=np.int64)
    np.add.at(steps, table.first[passing], sizes.nbytes[passing])
    np.subtract.at(steps, table.last[passing] + 1, sizes.nbytes[passing])
    workspace_nbytes = sizes.workspace_nbytes[np.array(table.order, dtype=np.int64)]
    persistent_nbytes = int(sizes.nbytes[sizes.persistent].sum())
    return np.cumsum(steps)[:-1] + persistent_nbytes + workspace_nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a graph's tensors and ops hold."""

    #: By tensor id; shape (tensors,).
    nbytes: NDArray[np.int64]
    persistent: NDArray[np.bool_]
    #: By op id; shape (ops,).
    workspace_nbytes: NDArray[np.int64]


@once_for_each
def sizes_of(graph: StepGraph) -> Sizes:
    """Return the sizes as arrays."""
    return Sizes(
        nbytes=np.array([tensor.nbytes for tensor in graph.tensors], dtype=np.int64),
        persistent=np.array([tensor.persistent for tensor in graph.tensors], dtype=bool),
        workspace_nbytes=np.array([op.workspace_nbytes for op in graph.ops], dtype=np.int64),
    )
