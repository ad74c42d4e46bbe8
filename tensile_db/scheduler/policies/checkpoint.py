"""Gradient checkpointing: a few feature maps stay, the others are recomputed, segment by segment.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost (2016), as Capuchin sections 6.1 and 7 and
TSPLIT section VI describe it.  The forward pass is cut into segments; what passes from one to another stays,
the rest of a segment is released and recomputed together when the backward pass reaches the segment.
- `checkpoint`: n layers in segments of about sqrt(n) each.
- `checkpoint_articulation`: cuts only at articulation points, tensors that alone connect what is before with
  what is after; as many of them as make about sqrt(n) segments.  This is the memory mode that Capuchin
  compares itself with.
Differs:
- A layer is an op of the forward pass that makes a feature map; in-place ops belong to the layer before them.
- All that passes from a segment to a later one stays, where the paper's networks are chains.
- The last segment stays: the backward pass needs it at once.
- What random ops make stays, since they must not run twice, and so does what an op saves
  for its backward op alone, unless it is as large as the feature map beside it (a pooling's indices are, a
  batch norm's statistics are not): each tensor is restored by itself, which runs such an op once more.
"""

from collections.abc import Sequence
from math import ceil, isqrt

from tensile_db.errors import InvalidRequest
from tensile_db.graph import Role, TensorId
from tensile_db.scheduler.analysis.accesses import AccessTable, Gap
from tensile_db.scheduler.analysis.layers import Layers
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.plan import DeviceSpec, Plan
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble
from tensile_db.scheduler.settling.restoring import find_restorations, schedule_restorations
from tensile_db.scheduler.shares import plan_as_they_are

_HINT = (
    "The checkpoint policies recompute the same tensors whatever the memory is: use the policy auto,"
    " or smaller batches."
)


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job with segments of sqrt(n) layers.  Raises DoesNotFit where memory is too small."""
    return plan_as_they_are(jobs, device, memory_nbytes, plan_one, _HINT)


def plan_articulation(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job with cuts at articulation points.  Raises DoesNotFit where memory is too small."""
    return plan_as_they_are(jobs, device, memory_nbytes, plan_one_articulation, _HINT)


def plan_one(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan a job with segments of sqrt(n) layers; neither device, budget nor sharers change the plan."""
    residency = Residency(request.graph, request.latencies_ns)
    layers = Layers(residency.table)
    return _plan_segments(residency, layers, _equal_cuts(layers), "checkpoint")


def plan_one_articulation(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan a job with cuts at articulation points; neither device, budget nor sharers change the plan.

    Raises InvalidRequest for a training step without them.
    """
    residency = Residency(request.graph, request.latencies_ns)
    layers = Layers(residency.table)
    cuts = _articulation_cuts(layers)
    if not cuts and layers.backward_begin < len(residency.table.order):
        raise InvalidRequest(
            'policy "checkpoint_articulation" cuts a network where a single tensor connects its parts,'
            " and this one has no such place",
            hint="Use policy => 'checkpoint', which cuts anywhere, or 'auto'.",
        )
    return _plan_segments(residency, layers, cuts, "checkpoint_articulation")


def _layers(layers: Layers) -> list[int]:
    """Return the positions of the forward ops that make a feature map."""
    table = layers.table
    found = {
        int(table.first[tensor.id])
        for tensor in table.graph.tensors
        if tensor.role is Role.ACTIVATION and layers.feeds_forward(tensor.id)
    }
    return sorted(found)


def _equal_cuts(layers: Layers) -> list[int]:
    """Return the first position of every segment but the first, for segments of ceil(sqrt(n)) layers."""
    begins = _layers(layers)
    length = _ceil_sqrt(len(begins))
    return begins[length::length] if begins else []


def _articulation_cuts(layers: Layers) -> list[int]:
    """Return the first position of every segment but the first, cut at about sqrt(n) articulation points."""
    begins = _layers(layers)
    crossing = _crossings(layers)
    points = [begin for begin in begins[1:] if crossing[begin] == 1]
    wanted = _ceil_sqrt(len(begins))
    if len(points) <= wanted:
        return points
    step = ceil(len(points) / wanted)
    return points[step - 1 :: step]


def _crossings(layers: Layers) -> list[int]:
    """Return, by position, how many feature maps made before it are read at it or later in the forward pass.

    One that is written again counts for two: what is before and after does not hang together by one value.
    """
    table = layers.table
    changes = [0] * (layers.backward_begin + 1)
    for tensor in table.graph.tensors:
        if tensor.role is not Role.ACTIVATION or not layers.feeds_forward(tensor.id):
            continue
        first, last = int(table.first[tensor.id]), layers.last_forward(tensor.id)
        last_write = max(p for p in table.writes[tensor.id] if p < layers.backward_begin)
        assert last is not None
        for begin, end in ((first, last), (first, last_write)):
            if begin < end:
                changes[begin + 1] += 1
                changes[end + 1] -= 1
    counts, count = [], 0
    for change in changes:
        count += change
        counts.append(count)
    return counts


def _plan_segments(residency: Residency, layers: Layers, cuts: Sequence[int], policy: str) -> Plan:
    """Release what no later segment reads, and restore a segment when the backward pass first needs it."""
    table = residency.table
    begins = [0, *cuts]
    kept_until: dict[TensorId, int] = {}
    gaps = []
    for begin, end in zip(begins, cuts, strict=False):
        released = [t for t in _made_between(table, begin, end) if _is_released(layers, t, end)]
        needed = [layers.first_backward(tensor) for tensor in released]
        restored_before = min((position for position in needed if position is not None), default=-1)
        for tensor in released:
            previous = layers.last_forward(tensor)
            assert previous is not None
            gaps.append(
                Gap(tensor=tensor, previous=previous, following=restored_before, ops=len(table.order))
            )
        # What the segment reads from the ones before it is there when it runs again.
        for op in table.order[begin:end]:
            for tensor in table.graph.ops[op].reads:
                kept_until[tensor] = max(kept_until.get(tensor, -1), restored_before)
    schedule_restorations(residency, find_restorations(residency, gaps, kept_until=kept_until))
    return assemble(residency, policy)


def _made_between(table: AccessTable, begin: int, end: int) -> list[TensorId]:
    """Return the activations that ops at positions in [begin, end) make."""
    return [
        tensor.id
        for tensor in table.graph.tensors
        if tensor.role is Role.ACTIVATION and begin <= table.first[tensor.id] < end
    ]


def _is_released(layers: Layers, tensor: TensorId, end: int) -> bool:
    """Whether a tensor of the segment that ends at `end` is released after its last use there."""
    last = layers.last_forward(tensor)
    return layers.is_saved(tensor) and last is not None and last < end and layers.is_worth_restoring(tensor)


def _ceil_sqrt(number: int) -> int:
    return isqrt(number - 1) + 1 if number else 0
