"""What the ops of a packed graph take, and back from what they took to what those it was made from take.

An op that is run with bits takes its fixed cost, and of the rest what it has of the whole op's traffic.  What
makes bits takes its traffic; it has not been measured before it runs.

Source: ours.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from tensile_db.graph import StepGraph, TensorId
from tensile_db.scheduler.packing.packed_graph import PackedGraph, known_packed_graph
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.splitting.latencies import part_ns, traffic_ns


def as_packed(request: JobRequest, packed: tuple[TensorId, ...], device: DeviceSpec) -> JobRequest:
    """Return the request with tensors of its graph packed, and the latencies that go with it."""
    if not packed:
        return request
    made = known_packed_graph(request.graph, packed)
    latencies_ns = packed_latencies_ns(request.graph, made, request.latencies_ns, device)
    return replace(request, graph=made.graph, latencies_ns=latencies_ns)


def packed_latencies_ns(
    graph: StepGraph, packed: PackedGraph, latencies_ns: Sequence[int], device: DeviceSpec
) -> tuple[int, ...]:
    """Return the latency of each op of a packed graph; latencies_ns: of the graph that it was made from."""
    found = [0 if made_from is None else latencies_ns[made_from] for made_from in packed.ops]
    for op_id in packed.changed:
        op, made_from = packed.graph.ops[op_id], packed.ops[op_id]
        if made_from is None:
            found[op_id] = traffic_ns(op, device)
        else:
            share = Fraction(op.moved_nbytes, graph.ops[made_from].moved_nbytes)
            found[op_id] = part_ns(latencies_ns[made_from], share, device)
    return tuple(found)


def unpacked_latencies_ns(
    graph: StepGraph, packed: PackedGraph, measured_ns: Sequence[int], device: DeviceSpec
) -> tuple[int, ...]:
    """Return the latency of each op of a graph, given those measured of the packed one's ops."""
    found = [1] * len(graph.ops)
    for took_ns, made_from in zip(measured_ns, packed.ops, strict=True):
        if made_from is not None:
            found[made_from] = max(1, took_ns)
    for op_id in packed.changed:
        op, made_from = packed.graph.ops[op_id], packed.ops[op_id]
        if made_from is not None:
            share = Fraction(graph.ops[made_from].moved_nbytes, op.moved_nbytes)
            variable_ns = max(0, measured_ns[op_id] - device.op_overhead_ns)
            found[made_from] = max(1, device.op_overhead_ns + int(variable_ns * share))
    return tuple(found)
