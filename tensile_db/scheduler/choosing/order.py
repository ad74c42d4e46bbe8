"""An order of ops that frees gradients early: each parameter is updated as soon as its gradient is complete.

Eager PyTorch holds all gradients until the optimizer runs.  The updates of different parameters do not depend
on each other, so any of them may run in the middle of the backward pass, once no later op reads the old
parameter; the results are the same bit for bit.

Source: ours; docs/planner.md, "auto".
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

from tensile_db.graph import OpId, Phase, Role, StepGraph, TensorId
from tensile_db.scheduler.analysis.channels import copy_ns


def updates_early(
    graph: StepGraph, latencies_ns: Sequence[int], state_bytes_per_s: int | None = None
) -> tuple[OpId, ...]:
    """Return the ops with every parameter's update moved to just behind the last op that it depends on.

    Ops of the forward and the backward pass keep their order, and so do the ops of one update.
    latencies_ns: by op id, shape (ops,).  state_bytes_per_s: a rate at which the updates' own state can come
    and go; each update, or part of one, then waits until the state of those before has had time to.
    """
    groups = _updates(graph)
    group_of = {op: number for number, ops in enumerate(groups) for op in ops}
    after = _last_dependencies(graph, group_of, len(groups))
    base = [op.id for op in graph.ops if op.id not in group_of]
    ends_ns = list(accumulate(latencies_ns[op] for op in base))
    place = {op: index for index, op in enumerate(base)}
    behind: dict[int, list[OpId]] = defaultdict(list)
    clock_ns = 0
    for number in sorted(range(len(groups)), key=lambda number: (after[number] or 0, number)):
        # What depends on no other op runs where eager would: at the end.
        last = after[number]
        first = place[last] if last is not None else len(base) - 1
        for segment, nbytes in _segments(graph, groups[number]):
            at = first
            if state_bytes_per_s is not None:
                clock_ns = max(clock_ns, ends_ns[first])
                at = max(first, min(bisect_left(ends_ns, clock_ns), len(base) - 2))
                clock_ns += copy_ns(nbytes, state_bytes_per_s)
            behind[at] += segment
    order: list[OpId] = []
    for index, op in enumerate(base):
        order.append(op)
        order += behind[index]
    return tuple(order)


def _last_dependencies(graph: StepGraph, group_of: Mapping[OpId, int], groups: int) -> list[OpId | None]:
    """Return for each update the last op outside of all updates that it must come after; None: none."""
    after: list[OpId | None] = [None] * groups
    last_write: dict[TensorId, OpId] = {}
    reads: dict[TensorId, list[OpId]] = defaultdict(list)
    for op in graph.ops:
        number = group_of.get(op.id)
        if number is not None:
            touched = [last_write[tensor] for tensor in {*op.reads, *op.writes} if tensor in last_write]
            for other in (*touched, *(read for tensor in op.writes for read in reads[tensor])):
                if other not in group_of:
                    after[number] = max(after[number] or other, other)
        for tensor in op.reads:
            reads[tensor].append(op.id)
        for tensor in op.writes:
            last_write[tensor] = op.id
            reads[tensor].clear()
    return after


def _segments(graph: StepGraph, ops: Sequence[OpId]) -> list[tuple[list[OpId], int]]:
    """Return an update in parts that share no state or temporary, each with the bytes of its state."""
    tensors = graph.tensors
    segments: list[tuple[list[OpId], set[TensorId]]] = []
    for op_id in ops:
        op = graph.ops[op_id]
        own = {t for t in op.writes if tensors[t].role is not Role.PARAMETER}
        own |= {t for t in op.reads if tensors[t].role is Role.OPTIMIZER_STATE}
        if not segments or (segments[-1][1] and not own & segments[-1][1]):
            segments.append(([], set()))
        segments[-1][0].append(op_id)
        segments[-1][1].update(own)
    return [
        (segment, sum(tensors[t].nbytes for t in own if tensors[t].persistent)) for segment, own in segments
    ]


def _updates(graph: StepGraph) -> list[list[OpId]]:
    """Return the optimizer's ops in groups that share no tensor which any of them writes."""
    ops = [op for op in graph.ops if op.phase is Phase.OPTIMIZER]
    written = {tensor for op in ops for tensor in op.writes}
    parent = {op.id: op.id for op in ops}

    def root(op: OpId) -> OpId:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    first: dict[TensorId, OpId] = {}
    for op in ops:
        for tensor in {*op.reads, *op.writes} & written:
            parent[root(op.id)] = root(first.setdefault(tensor, op.id))
    groups: dict[OpId, list[OpId]] = defaultdict(list)
    for op in ops:
        groups[root(op.id)].append(op.id)
    tensors = graph.tensors
    updates = [
        group
        for group in groups.values()
        if any(tensors[tensor].persistent for op in group for tensor in graph.ops[op].writes)
    ]
    return sorted(updates)
