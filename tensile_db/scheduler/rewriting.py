"""The graph that a plan is of: the captured one with tensors packed, and then with ops split.

Latencies are told by the captured graph's ops, whichever way a plan rewrites it.

Source: ours.
"""

from collections.abc import Sequence

from tensile_db.graph import OpId, StepGraph
from tensile_db.scheduler.packing.latencies import as_packed, unpacked_latencies_ns
from tensile_db.scheduler.packing.packed_graph import known_packed_graph
from tensile_db.scheduler.plan import DeviceSpec, Plan, Rewriting
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.splitting.latencies import as_split, whole_latencies_ns
from tensile_db.scheduler.splitting.pieces import Execute
from tensile_db.scheduler.splitting.split_graph import known_split_graph


def as_rewritten(request: JobRequest, rewriting: Rewriting, device: DeviceSpec) -> JobRequest:
    """Return the request with its graph rewritten, and the latencies that go with it."""
    return as_split(as_packed(request, rewriting.packed, device), rewriting.splits, device)


def planned_graph(graph: StepGraph, plan: Plan) -> StepGraph:
    """Return the graph that a plan's order and events are of."""
    packed = packed_graph(graph, plan.rewriting)
    return known_split_graph(packed, plan.splits).graph if plan.splits else packed


def captured_latencies_ns(
    graph: StepGraph, rewriting: Rewriting, measured_ns: Sequence[int], device: DeviceSpec
) -> tuple[int, ...]:
    """Return the latency of each captured op, given those measured of the rewritten graph's ops."""
    if rewriting.splits:
        packed = packed_graph(graph, rewriting)
        split = known_split_graph(packed, rewriting.splits)
        measured_ns = whole_latencies_ns(packed, split, measured_ns, device)
    if rewriting.packed:
        made = known_packed_graph(graph, rewriting.packed)
        measured_ns = unpacked_latencies_ns(graph, made, measured_ns, device)
    return tuple(measured_ns)


def captured_ops(graph: StepGraph, rewriting: Rewriting) -> tuple[OpId | None, ...]:
    """Return of each op of the rewritten graph the captured one that it is, or is a part of; None: none."""
    made_from: Sequence[OpId | None] = [op.id for op in graph.ops]
    if rewriting.packed:
        made_from = known_packed_graph(graph, rewriting.packed).ops
    if rewriting.splits:
        pieces = known_split_graph(packed_graph(graph, rewriting), rewriting.splits).pieces
        made_from = [made_from[piece.op] if isinstance(piece, Execute) else None for piece in pieces]
    return tuple(made_from)


def packed_graph(graph: StepGraph, rewriting: Rewriting) -> StepGraph:
    """Return the graph with the tensors packed, of which the splits are."""
    return known_packed_graph(graph, rewriting.packed).graph if rewriting.packed else graph
