"""Reads what anybody's plan does to the captured graph first: the tensors it packs, the ops it splits.

What rewrites a graph takes for granted that it can be done; here that is found out.

Source: ours.
"""

from tensile_db.graph import Axis, OpId, StepGraph, TensorId
from tensile_db.scheduler.packing.packed_graph import packable
from tensile_db.scheduler.plan import Rewriting, Split
from tensile_db.scheduler.rewriting import packed_graph
from tensile_db.scheduler.splitting.ways import find_splitting
from tensile_db.scheduler.untrusted_json import Json, invalid


def rewriting_from_json(data: Json, graph: StepGraph) -> Rewriting:
    """Return what a plan does to a captured graph; raise InvalidRequest where that cannot be done."""
    packed = _packed(data["packed"], graph)
    rewritten = packed_graph(graph, Rewriting(packed=packed))
    split_by: dict[OpId, str] = {}
    splits = tuple(_split(each, rewritten, split_by) for each in data["splits"])
    return Rewriting(packed=packed, splits=splits)


def _packed(data: Json, graph: StepGraph) -> tuple[TensorId, ...]:
    packed = tuple(TensorId(tensor) for tensor in data.places_in(len(graph.tensors), "tensors"))
    for tensor in packed:
        if tensor not in packable(graph):
            raise invalid(f"{data.place} has tensor {tensor}, of which no code can be kept instead")
    return packed


def _split(data: Json, graph: StepGraph, split_by: dict[OpId, str]) -> Split:
    """Return one split.

    graph: with the tensors packed.  split_by: by op, the place of the split that has it; this one's go there.
    """
    axis = Axis(data["axis"].one_of(list(Axis)))
    ops = tuple(OpId(op) for op in data["ops"].places_in(len(graph.ops), "ops"))
    if not ops:
        raise invalid(f"{data.place} splits no op")
    extents: dict[int, OpId] = {}
    for op in ops:
        splitting = find_splitting(graph.ops[op], axis)
        if splitting is None:
            raise invalid(
                f"{data.place} splits op {op} ({graph.ops[op].target}), which cannot be split along its"
                f" {axis}"
            )
        if op in split_by:
            raise invalid(f"{data.place} splits op {op}, and so does {split_by[op]}")
        split_by[op] = data.place
        extents.setdefault(splitting.extent, op)
    if len(extents) > 1:
        said = " and ".join(f"op {op}, which has {extent}" for extent, op in list(extents.items())[:2])
        raise invalid(f"{data.place} splits {said} along its {axis}: the ops of a split have as many")
    return Split(axis=axis, parts=data["parts"].whole(least=1), ops=ops, blocks=data["blocks"].flag())
