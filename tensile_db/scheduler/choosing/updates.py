"""The optimizer's ops as updates: groups of ops that can be moved as one, and what they can wait for.

Source: ours; docs/planner/auto.md.
"""

from collections import defaultdict
from collections.abc import Sequence

from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, TensorId
from tensile_db.scheduler.analysis.once import once_for_each


@once_for_each
def find_updates(graph: StepGraph) -> list[list[OpId]]:
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


def with_waiting_gradients(graph: StepGraph, least_nbytes: int) -> tuple[list[list[OpId]], frozenset[int]]:
    """Return the updates, each led by the op that makes its gradient where that op can wait, and which are.

    Updates of what one op makes become one; of a gradient in parts, each op leads what takes its part first.
    least_nbytes: of gradients worth it, their parts together.
    """
    updates = find_updates(graph)
    if sum(made_nbytes for _, made_nbytes in _makers_of_more(graph)) < least_nbytes:
        return list(map(list, updates)), frozenset()
    grown: dict[int, list[OpId]] = {number: list(ops) for number, ops in enumerate(updates)}
    waiting: set[int] = set()
    for numbers, made in gradients_that_can_wait(graph).items():
        if numbers <= grown.keys() and sum(nbytes for _, nbytes in made) >= least_nbytes:
            first = min(numbers)
            ops = [op for number in sorted(numbers) for op in grown.pop(number)]
            grown[first] = _led(graph, [maker for maker, _ in made], ops)
            waiting.add(first)
    kept = sorted(grown)
    return [grown[number] for number in kept], frozenset(map(kept.index, waiting))


@once_for_each
def gradients_that_can_wait(graph: StepGraph) -> dict[frozenset[int], list[tuple[Op, int]]]:
    """Return the ops that can wait, and the bytes they make, by the numbers of the updates they wait for.

    One can where only updates touch what it makes, only these write later what it reads, and it makes more
    than it holds.
    """
    number_of = {op: number for number, ops in enumerate(find_updates(graph)) for op in ops}
    touched: dict[TensorId, list[OpId]] = defaultdict(list)
    for op in graph.ops:
        for tensor in {*op.reads, *op.writes}:
            touched[tensor].append(op.id)
    found: dict[frozenset[int], list[tuple[Op, int]]] = defaultdict(list)
    for maker, made_nbytes in _makers_of_more(graph):
        later = {op for tensor in maker.writes for op in touched[tensor]} - {maker.id}
        numbers = frozenset(number_of.get(op, -1) for op in later)
        changed = {
            op
            for tensor in maker.values
            for op in touched[tensor]
            if op >= maker.id and tensor in graph.ops[op].writes
        }
        if numbers and -1 not in numbers and numbers >= {number_of.get(op, -1) for op in changed}:
            found[numbers].append((maker, made_nbytes))
    return dict(found)


def _led(graph: StepGraph, makers: Sequence[Op], update: Sequence[OpId]) -> list[OpId]:
    """Return an update's ops, each of the makers ahead of the part of it that first touches what it makes.

    One that takes the value of what the update writes comes before all of it.
    """
    written = {tensor for op in update for tensor in graph.ops[op].writes}
    ops = [maker.id for maker in makers if written.intersection(maker.values)]
    for segment, _ in segments_of(graph, update):
        touched = {t for op in segment for t in (*graph.ops[op].reads, *graph.ops[op].writes)}
        ops += [maker.id for maker in makers if maker.id not in ops and touched.intersection(maker.writes)]
        ops += segment
    return ops


@once_for_each
def _makers_of_more(graph: StepGraph) -> list[tuple[Op, int]]:
    """Return the backward ops that make more than they hold, and how many bytes they make."""
    tensors = graph.tensors
    makers = []
    for op in graph.ops:
        if op.phase is Phase.BACKWARD:
            made_nbytes = sum(tensors[tensor].nbytes for tensor in op.writes)
            held_nbytes = sum(tensors[tensor].nbytes for tensor in op.reads if not tensors[tensor].persistent)
            if made_nbytes > held_nbytes:
                makers.append((op, made_nbytes))
    return makers


def segments_of(graph: StepGraph, ops: Sequence[OpId]) -> list[tuple[list[OpId], int]]:
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
