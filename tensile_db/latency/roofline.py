"""Op latencies before a job has ever run: the slower of arithmetic and memory traffic, plus a fixed cost.

    latency = overhead + max(flops / flops_per_s, moved_nbytes / memory_bytes_per_s)

Pure.  Source: Williams, Waterman, Patterson, "Roofline" (CACM 2009).  It stands in where the learned
predictor (predictor.py) knows nothing of an op.
"""

from tensile_db.graph import StepGraph
from tensile_db.scheduler.plan import DeviceSpec

_NS_PER_S = 1_000_000_000


def predict_latencies_ns(graph: StepGraph, device: DeviceSpec) -> tuple[int, ...]:
    """Return the predicted latency of each op, by op id, in ns; each is at least 1."""
    return tuple(roofline_ns(op.flops, op.moved_nbytes, device) for op in graph.ops)


def roofline_ns(flops: int, moved_nbytes: int, device: DeviceSpec) -> int:
    """Return the latency of an op of so much arithmetic and memory traffic, in ns, at least 1."""
    arithmetic_ns = flops * _NS_PER_S // device.flops_per_s
    traffic_ns = moved_nbytes * _NS_PER_S // device.memory_bytes_per_s
    return max(1, device.op_overhead_ns + max(arithmetic_ns, traffic_ns))
