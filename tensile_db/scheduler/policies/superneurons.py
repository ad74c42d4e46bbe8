"""SuperNeurons: what is expensive to make is swapped, what is cheap is recomputed from it.

Source: SuperNeurons (PPoPP 2018), as Capuchin sections 1, 3.1, 5.3 and 7 and TSPLIT sections II and VI
describe it, with its three parts: liveness analysis, a pool of tensors on host and device (outputs of
convolutions are swapped, since a convolution's time hides their copies), and cost-aware recomputation
(activation, normalization, pooling, dropout and concatenation are released and made again from those
outputs, layer by layer).
- `superneurons`: speed-centric. What a layer released is recomputed together, once, when the backward pass
  first needs one of it; but memory-centric for layers whose recomputed tensors together would exceed the
  memory of the network's largest op, which no plan can undercut. The paper calls this cost-aware.
- `superneurons_memory`: memory-centric. Each tensor is recomputed by itself when the backward pass needs it,
  all the way from the outputs that were swapped.
Differs:
- Layers are read off the ops, from convolution to convolution (`analysis/layers.py`); copies and waits:
  `choosing/offload.py`.
- What the addition of two feature maps makes counts as an output of a convolution: recomputing it would lead
  through all blocks of a residual network before it.
- Products of matrices (fully connected layers) stay on the device, as in the paper; networks without
  convolutions only recompute what lies between them.
- What random ops make stays, and what an op saves for its own backward op alone unless it is as large as the
  feature map beside it, as in `checkpoint.py`.
- Neither the paper's cache, which spares copies where memory is ample, nor its choice of a convolution's
  algorithm has a counterpart: the plan is the same for any memory.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence

from tensile_db.graph import Role, TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.chains import Chain
from tensile_db.scheduler.analysis.layers import Layers, is_convolution, is_expensive, is_join
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.offload import swap_with_layers
from tensile_db.scheduler.plan import DeviceSpec, Plan
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.follow import assemble_followed
from tensile_db.scheduler.settling.restoring import find_restorations, schedule_restorations
from tensile_db.scheduler.shares import plan_as_they_are

_HINT = (
    "The SuperNeurons policies swap and recompute the same tensors whatever the memory is:"
    " use the policy auto, or smaller batches."
)


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job speed-centric.  Raises DoesNotFit where memory is too small."""
    return plan_as_they_are(jobs, device, memory_nbytes, plan_one, _HINT)


def plan_memory(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job memory-centric.  Raises DoesNotFit where memory is too small."""
    return plan_as_they_are(jobs, device, memory_nbytes, plan_one_memory, _HINT)


def plan_one(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan a job speed-centric; neither budget nor sharers change the plan, nor the device its choices."""
    return _plan_one(request, device, "superneurons", speed_centric=True)


def plan_one_memory(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan a job memory-centric; neither budget nor sharers change the plan, nor the device its choices."""
    return _plan_one(request, device, "superneurons_memory", speed_centric=False)


def _plan_one(request: JobRequest, device: DeviceSpec, policy: str, *, speed_centric: bool) -> Plan:
    residency = Residency(request.graph, request.latencies_ns)
    layers = Layers(residency.table)
    made = [t.id for t in request.graph.tensors if t.role is Role.ACTIVATION and layers.is_forward(t.id)]
    checkpoints = [tensor for tensor in made if _is_checkpoint(layers, tensor)]
    cheap = set(made).difference(checkpoints)
    released = [t for t in sorted(cheap) if layers.is_saved(t) and layers.is_worth_restoring(t)]
    gaps = _gaps(layers, released, speed_centric=speed_centric)
    # Checkpoints are there wherever a chain needs one, brought back in time if they were swapped.
    kept_until = dict.fromkeys(checkpoints, len(residency.table.order))
    restorations = find_restorations(
        residency, gaps, kept_until=kept_until, allowed=lambda chain: not _has_expensive(layers, chain)
    )
    schedule_restorations(residency, restorations)
    swap_with_layers(residency, layers, [t for t in checkpoints if not _is_of_matrices(layers, t)])
    return assemble_followed(residency, request.latencies_ns, device, policy)


def _is_checkpoint(layers: Layers, tensor: TensorId) -> bool:
    """Whether a convolution, a product of matrices or a join of two feature maps had a part in the tensor."""
    graph = layers.table.graph
    return any(
        is_expensive(graph.ops[op]) or is_join(graph, graph.ops[op]) for op in layers.forward_writers(tensor)
    )


def _is_of_matrices(layers: Layers, tensor: TensorId) -> bool:
    ops = [layers.table.graph.ops[op] for op in layers.forward_writers(tensor)]
    return any(is_expensive(op) for op in ops) and not any(is_convolution(op) for op in ops)


def _gaps(layers: Layers, tensors: Sequence[TensorId], *, speed_centric: bool) -> list[Gap]:
    """Return from where to where each tensor is away."""
    table = layers.table
    together: dict[int, list[TensorId]] = defaultdict(list)
    for tensor in tensors:
        together[bisect_right(layers.convolutions, table.first[tensor])].append(tensor)
    largest_nbytes = lower_bound_peak_nbytes(table.graph)
    gaps = []
    for layer in together.values():
        needed = {
            tensor: position for tensor in layer if (position := layers.first_backward(tensor)) is not None
        }
        fits = sum(table.graph.tensors[tensor].nbytes for tensor in layer) <= largest_nbytes
        earliest = min(needed.values())
        for tensor, position in needed.items():
            previous = layers.last_forward(tensor)
            assert previous is not None
            following = earliest if speed_centric and fits else position
            gaps.append(Gap(tensor=tensor, previous=previous, following=following, ops=len(table.order)))
    return gaps


def _has_expensive(layers: Layers, chain: Chain) -> bool:
    return any(is_expensive(layers.table.graph.ops[op]) for op in chain.ops)
