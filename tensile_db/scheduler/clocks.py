"""How far simulated clocks go: times are 64-bit integers, of as many iterations as a period takes to settle.

Source: ours.
"""

from collections.abc import Sequence

from tensile_db.errors import InvalidRequest
from tensile_db.graph import StepGraph
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.simulation import MAX_ITERATIONS

#: All that one iteration does takes no longer, one thing after the other.
MOST_NS = 2**62 // (MAX_ITERATIONS + 1)
#: A plan looked at may run ops again, or in parts: together they take at most so many times the ops' time.
_AGAIN = 64


def check_clock(graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec) -> None:
    """Raise InvalidRequest where a plan's iteration could take longer than a clock can tell.

    latencies_ns: by op id, shape (ops,).
    """
    uses = [0] * len(graph.tensors)
    for op in graph.ops:
        for tensor in {*op.reads, *op.writes}:
            uses[tensor] += 1
    ops_ns = sum(latencies_ns)
    # Between two uses a tensor leaves at most once.
    copies_ns = sum(
        count
        * (
            copy_ns(tensor.nbytes, device.d2h_bytes_per_s)
            + copy_ns(tensor.nbytes, device.h2d_bytes_per_s)
            + 2 * device.ops_lose_ns(tensor.nbytes)
        )
        for tensor, count in zip(graph.tensors, uses, strict=True)
    )
    if _AGAIN * ops_ns + copies_ns > MOST_NS:
        raise InvalidRequest(
            f"an iteration's ops take {ops_ns} ns on {device.name}, and copies of what they use, before and"
            f" after each of them, {copies_ns} ns: no clock goes so far",
            hint="Name a faster machine: rates are in bytes and operations a second, overheads in ns.",
        )
