"""Op latencies before a job has ever run: the slower of arithmetic and memory traffic, plus a fixed cost.

    latency = overhead + max(flops / flops_per_s, moved_nbytes / memory_bytes_per_s)

Pure.  Source: Williams, Waterman, Patterson, "Roofline" (CACM 2009), in the place of the learned predictor
of TENSILE section IV-A.  Differs: no measurement of single operators is needed, and none is used.
"""

from tensile_db.graph import Op, StepGraph
from tensile_db.scheduler.plan import DeviceSpec

_NS_PER_S = 1_000_000_000


def predict_latencies_ns(graph: StepGraph, device: DeviceSpec) -> tuple[int, ...]:
    """Return the predicted latency of each op, by op id, in ns; each is at least 1."""
    return tuple(_latency_ns(op, device) for op in graph.ops)


def _latency_ns(op: Op, device: DeviceSpec) -> int:
    arithmetic_ns = op.flops * _NS_PER_S // device.flops_per_s
    traffic_ns = op.moved_nbytes * _NS_PER_S // device.memory_bytes_per_s
    return max(1, device.op_overhead_ns + max(arithmetic_ns, traffic_ns))
