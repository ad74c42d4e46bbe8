"""When each tensor can be away from the device, in every order of a graph's ops that keeps to a spine.

Segments and instants are the spine's (`spine.py`).  What cannot be known without the order is settled in the
plans' favour: an access by an op off the spine counts only where it makes or ends a life, or writes a
persistent tensor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.bound.spine import Spine


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """A stretch in which a tensor may be away: between two accesses that no order swaps."""

    tensor: TensorId
    #: The first segment in which a copy to the host may run, the last in which one to the device may.
    leaves: int
    returns: int
    #: Instants at which it may be away: [first, last), within one iteration, unless it wraps.
    first: int
    last: int
    #: Instants at which it is this stretch that goes on in every order: [surely_first, surely_last), or where
    #: it wraps, those from `surely_first` on and those before `surely_last`.
    surely_first: int
    surely_last: int
    #: Goes over the iteration's end: away at instants from `leaves` on, and at those before `returns`.
    wraps: bool
    #: Stretches of one tensor between the same two writes; the copy to the host is paid for once in each.
    #: None: the host's copy is always valid.
    epoch: int | None
    #: What makes the value again, in order; empty where nothing may.
    recompute: tuple[OpId, ...]
    #: Its next access overwrites it unread, so it may simply be freed.
    is_dead: bool
    #: The access that ends it, or the last one of a row that does.
    until: OpId


@dataclass(frozen=True, slots=True, kw_only=True)
class _Touch:
    """An access, or a row of accesses whose places within [floor, ceiling] are not known."""

    #: Segment by whose end the tensor must be there at the latest; segment in which it can leave at the
    #: earliest.
    due: int
    leaves: int
    #: The first instant at which an order may have begun the accesses, and the first one at which every order
    #: has made them.
    earliest: int
    latest: int
    op: OpId
    writes: bool


def alive_nbytes(graph: StepGraph, spine: Spine) -> NDArray[np.int64]:
    """Return the bytes that surely have a value, here or there, and workspaces; by instant, (2m + 1,)."""
    steps = np.zeros(2 * len(spine.ops) + 2, dtype=np.int64)
    accesses = accesses_of(graph, spine)
    for tensor in graph.tensors:
        begin, end = life(graph, spine, tensor.id, accesses[tensor.id])
        if begin < end:
            steps[begin] += tensor.nbytes
            steps[end] -= tensor.nbytes
    for index, op in enumerate(spine.ops):
        steps[2 * index] += graph.ops[op].workspace_nbytes
        steps[2 * index + 2] -= graph.ops[op].workspace_nbytes
    alive: NDArray[np.int64] = np.cumsum(steps)[:-1]
    return alive


def accesses_of(graph: StepGraph, spine: Spine) -> list[list[OpId]]:
    """Return, by tensor, the ops that read or write it: in eager's order, or in that of a spine of all."""
    accesses: list[list[OpId]] = [[] for _ in graph.tensors]
    # Reads may change places, and those of a shape alone with writes, too.
    order = spine.ops if len(spine.ops) == len(graph.ops) else [op.id for op in graph.ops]
    for op_id in order:
        op = graph.ops[op_id]
        for tensor in {*op.reads, *op.writes}:
            accesses[tensor].append(op_id)
    return accesses


def find_idle(graph: StepGraph, spine: Spine, tensor: TensorId, accesses: Sequence[OpId]) -> list[Idle]:
    """Return a tensor's idle stretches, those of an epoch in the order in which time goes over them.

    accesses: as of `accesses_of`.
    """
    persistent = graph.tensors[tensor].persistent
    touches = _touches(graph, spine, tensor, accesses)
    begin, end = life(graph, spine, tensor, accesses)
    writes = sum(touch.writes for touch in touches)
    found, written = [], 0
    for before, after in pairwise(touches):
        written += before.writes
        found.append(
            Idle(
                tensor=tensor,
                leaves=before.leaves,
                returns=after.due,
                first=max(before.leaves, begin),
                last=min(after.due, end),
                surely_first=max(before.latest, begin),
                surely_last=min(after.earliest, end),
                wraps=False,
                epoch=written if writes else None,
                recompute=() if persistent else chain_of(graph, tensor, accesses, before.op),
                is_dead=not persistent and _is_overwritten(graph, tensor, accesses, before.op, after.op),
                until=after.op,
            )
        )
    if persistent and touches:
        found.append(
            Idle(
                tensor=tensor,
                leaves=touches[-1].leaves,
                returns=touches[0].due,
                first=begin,
                last=end,
                surely_first=touches[-1].latest,
                surely_last=touches[0].earliest,
                wraps=True,
                epoch=writes or None,
                recompute=(),
                is_dead=False,
                until=touches[0].op,
            )
        )
    # What comes before an iteration's first write belongs to the last write of the one before.
    found.sort(key=lambda idle: idle.epoch == 0)
    return [replace(idle, epoch=writes) if idle.epoch == 0 else idle for idle in found]


def overlaps(
    graph: StepGraph, spine: Spine, tensor: TensorId, accesses: Sequence[OpId]
) -> Iterator[tuple[int, int]]:
    """Yield where two idle stretches of a persistent tensor overlap, since a write's place is not known.

    Half-open instants: from the write's earliest end to its latest start.
    """
    if graph.tensors[tensor].persistent:
        for touch in _touches(graph, spine, tensor, accesses):
            if touch.writes and touch.leaves < touch.due:
                yield touch.leaves, touch.due


def _touches(graph: StepGraph, spine: Spine, tensor: TensorId, accesses: Sequence[OpId]) -> list[_Touch]:
    if not accesses:
        return []
    on_spine = [op for op in accesses if spine.has(op)]
    if graph.tensors[tensor].persistent:
        kept = [op for op in accesses if spine.has(op) or tensor in graph.ops[op].writes]
        if not kept:
            return [_row_of(graph, spine, tensor, accesses)]
        rows: list[list[OpId]] = []
        for op in kept:
            if rows and not spine.has(op) and not spine.has(rows[-1][-1]):
                rows[-1].append(op)
            else:
                rows.append([op])
        return [_row_of(graph, spine, tensor, row) for row in rows]
    touches = [_row_of(graph, spine, tensor, [op]) for op in on_spine]
    if not spine.has(accesses[0]):
        touches.insert(0, _row_of(graph, spine, tensor, accesses[:1]))
    ending = max(accesses, key=lambda op: (spine.floor[op], op))
    if not spine.has(ending) and ending != accesses[0]:
        touches.append(_row_of(graph, spine, tensor, [ending]))
    return touches


def _row_of(graph: StepGraph, spine: Spine, tensor: TensorId, ops: Sequence[OpId]) -> _Touch:
    """Return the touch of ops of which nothing more is known than where each may lie."""
    if any(tensor in graph.ops[op].writes for op in ops):
        # Writes stand in a known order.
        first, last = spine.ceiling[ops[0]], spine.floor[ops[-1]]
    else:
        first, last = max(spine.ceiling[op] for op in ops), min(spine.floor[op] for op in ops)
    return _Touch(
        due=2 * first,
        leaves=2 * last + 2,
        earliest=spine.begun_from(ops),
        latest=spine.over_at(ops),
        op=ops[-1],
        writes=any(tensor in graph.ops[op].writes for op in ops),
    )


def life(graph: StepGraph, spine: Spine, tensor: TensorId, accesses: Sequence[OpId]) -> tuple[int, int]:
    """Return the instants, half-open, at which a tensor surely has a value that is still needed."""
    if graph.tensors[tensor].persistent:
        return 0, 2 * len(spine.ops) + 1
    if not accesses:
        return 0, 0
    return 2 * spine.ceiling[accesses[0]], 2 * max(spine.floor[op] for op in accesses) + 2


def chain_of(graph: StepGraph, tensor: TensorId, accesses: Sequence[OpId], until: OpId) -> tuple[OpId, ...]:
    """Return the ops that make a tensor's value after `until`; empty where one must not run twice."""
    chain: list[OpId] = []
    for op in accesses[: accesses.index(until) + 1]:
        if tensor not in graph.ops[op].writes:
            continue
        if tensor not in graph.ops[op].reads:
            chain = []
        chain.append(op)
    return tuple(chain) if all(graph.ops[op].recomputable for op in chain) else ()


def _is_overwritten(
    graph: StepGraph, tensor: TensorId, accesses: Sequence[OpId], after: OpId, until: OpId
) -> bool:
    """Whether an op in (after, until] overwrites the tensor without reading it."""
    return any(
        tensor in graph.ops[op].writes and tensor not in graph.ops[op].reads
        for op in accesses[accesses.index(after) + 1 : accesses.index(until) + 1]
    )
