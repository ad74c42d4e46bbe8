"""A job as it is planned: its split graph, and what the parts of its ops take.

A part takes the op's fixed cost, and of the rest what it has of the op's arithmetic or memory traffic,
whichever binds.  Where ops have been measured in parts, the same rule read backwards gives what the whole op
takes, so that a plan with other parts can be made from it.

Source: TSPLIT section V-B.
Differs: the paper measures each op with each number of parts before training; here latencies are predicted,
and corrected by what is measured while the job runs.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from tensile_db.graph import Op, StepGraph
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.plan import DeviceSpec, Split
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.splitting.pieces import Execute, SplitGraph, SplitOps
from tensile_db.scheduler.splitting.split_graph import known_split_graph


def as_split(request: JobRequest, splits: Sequence[Split], device: DeviceSpec) -> JobRequest:
    """Return the request with its graph split, and the latencies that go with it; itself without splits."""
    if not splits:
        return request
    split = known_split_graph(request.graph, tuple(splits))
    latencies_ns = part_latencies_ns(request.graph, split, request.latencies_ns, device)
    return replace(request, graph=split.graph, latencies_ns=latencies_ns)


def unmeasured_latencies_ns(graph: StepGraph, device: DeviceSpec) -> tuple[int, ...]:
    """Return what each op takes by the device's rates: its fixed cost, and arithmetic or traffic."""
    return tuple(max(1, device.op_overhead_ns + _roofline_ns(op, device)) for op in graph.ops)


def part_latencies_ns(
    graph: StepGraph, split: SplitGraph | SplitOps, latencies_ns: Sequence[int], device: DeviceSpec
) -> tuple[int, ...]:
    """Return the latency of each op of a split graph, in order; latencies_ns: of the whole graph's."""
    found = []
    for op, piece in zip(split.ops, split.pieces, strict=True):
        if not isinstance(piece, Execute):
            found.append(traffic_ns(op, device))
        elif piece.axis is None:
            found.append(latencies_ns[piece.op])
        else:
            share = _share(op, graph.ops[piece.op], device)
            found.append(part_ns(latencies_ns[piece.op], share, device))
    return tuple(found)


def traffic_ns(op: Op, device: DeviceSpec) -> int:
    """Return what an op takes that only moves bytes within the device."""
    return max(1, device.op_overhead_ns + copy_ns(op.moved_nbytes, device.memory_bytes_per_s))


def part_ns(whole_ns: int, share: Fraction, device: DeviceSpec) -> int:
    """Return what an op takes with a share of what it does: its fixed cost stays."""
    fixed_ns = min(whole_ns, device.op_overhead_ns)
    return max(1, fixed_ns + int((whole_ns - fixed_ns) * share))


def whole_latencies_ns(
    graph: StepGraph, split: SplitGraph, measured_ns: Sequence[int], device: DeviceSpec
) -> tuple[int, ...]:
    """Return the latency of each op of the whole graph, given those measured of the split one's ops."""
    variable_ns = [0] * len(graph.ops)
    shares = [Fraction(0)] * len(graph.ops)
    whole_ns: list[int | None] = [None] * len(graph.ops)
    for op, piece in zip(split.graph.ops, split.pieces, strict=True):
        if not isinstance(piece, Execute):
            continue
        if piece.axis is None:
            whole_ns[piece.op] = measured_ns[op.id]
        else:
            shares[piece.op] += _share(op, graph.ops[piece.op], device)
            variable_ns[piece.op] += max(0, measured_ns[op.id] - device.op_overhead_ns)
    return tuple(
        max(1, device.op_overhead_ns + int(variable / share)) if known is None else known
        for known, variable, share in zip(whole_ns, variable_ns, shares, strict=True)
    )


def _share(part: Op, whole: Op, device: DeviceSpec) -> Fraction:
    """Return how much of an op's time beyond its fixed cost a part takes."""
    by_part = _roofline_ns(part, device)
    by_whole = _roofline_ns(whole, device)
    return Fraction(by_part, by_whole) if by_whole else Fraction(1)


def _roofline_ns(op: Op, device: DeviceSpec) -> int:
    return max(copy_ns(op.flops, device.flops_per_s), copy_ns(op.moved_nbytes, device.memory_bytes_per_s))
