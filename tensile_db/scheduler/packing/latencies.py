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
    found = []
    for op, made_from in zip(packed.graph.ops, packed.ops, strict=True):
        if made_from is None:
            found.append(traffic_ns(op, device))
            continue
        whole, whole_ns = graph.ops[made_from], latencies_ns[made_from]
        if op.moved_nbytes != whole.moved_nbytes:
            whole_ns = part_ns(whole_ns, Fraction(op.moved_nbytes, whole.moved_nbytes), device)
        found.append(whole_ns)
    return tuple(found)


def unpacked_latencies_ns(
    graph: StepGraph, packed: PackedGraph, measured_ns: Sequence[int], device: DeviceSpec
) -> tuple[int, ...]:
    """Return the latency of each op of a graph, given those measured of the packed one's ops."""
    found = [1] * len(graph.ops)
    for op, made_from in zip(packed.graph.ops, packed.ops, strict=True):
        if made_from is None:
            continue
        took_ns, whole = measured_ns[op.id], graph.ops[made_from]
        if op.moved_nbytes != whole.moved_nbytes:
            share = Fraction(whole.moved_nbytes, op.moved_nbytes)
            took_ns = device.op_overhead_ns + int(max(0, took_ns - device.op_overhead_ns) * share)
        found[made_from] = max(1, took_ns)
    return tuple(found)
