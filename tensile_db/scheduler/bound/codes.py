"""Codes in the bound: every tensor that can be packed is, and at no cost.

A plan that packs some tensors runs the same ops in a graph in which all are packed, but for the ops that make
codes; with these taking no time, ops with codes the less of what they take with and without, and codes no
bytes, its time and its memory there are no more than they are.

Source: ours.
"""

from collections.abc import Sequence
from dataclasses import replace

from tensile_db.graph import OpId, StepGraph
from tensile_db.scheduler.bounds import time_of_ops_ns
from tensile_db.scheduler.packing.latencies import packed_latencies_ns
from tensile_db.scheduler.packing.packed_graph import known_packed_graph, packable
from tensile_db.scheduler.plan import DeviceSpec


def with_free_codes(
    graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec, order: Sequence[OpId] | None
) -> tuple[StepGraph, Sequence[int], Sequence[OpId] | None]:
    """Return the graph with all packed, its ops' latencies, and the order of its ops, if there is one."""
    packed = known_packed_graph(graph, tuple(packable(graph)))
    if not packed.codes:
        return graph, latencies_ns, order
    with_codes_ns = packed_latencies_ns(graph, packed, latencies_ns, device)
    free_ns = [
        0 if made_from is None else min(latencies_ns[made_from], took_ns)
        for made_from, took_ns in zip(packed.ops, with_codes_ns, strict=True)
    ]
    codes = set(packed.codes.values())
    tensors = tuple(replace(t, nbytes=0) if t.id in codes else t for t in packed.graph.tensors)
    made = StepGraph(tensors=tensors, ops=packed.graph.ops)
    if order is None:
        return made, free_ns, None
    #: By captured op: it, and behind it those that make codes.
    followed: list[list[OpId]] = []
    for op, made_from in zip(packed.graph.ops, packed.ops, strict=True):
        if made_from is not None:
            followed.append([])
        followed[-1].append(op.id)
    return made, free_ns, [op for each in order for op in followed[each]]


def least_ops_ns(graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec) -> int:
    """Return the least time that the ops take, whatever is packed: codes cost time, and save some."""
    packed = known_packed_graph(graph, tuple(packable(graph)))
    with_codes_ns = packed_latencies_ns(graph, packed, latencies_ns, device)
    saved_ns = dict.fromkeys(packed.codes.values(), 0)
    for op, made_from, took_ns in zip(packed.graph.ops, packed.ops, with_codes_ns, strict=True):
        if made_from is None:
            saved_ns[op.writes[0]] -= took_ns
            continue
        for code in saved_ns.keys() & set(op.reads):
            saved_ns[code] += latencies_ns[made_from] - took_ns
    return time_of_ops_ns(latencies_ns) - sum(max(0, saved) for saved in saved_ns.values())
