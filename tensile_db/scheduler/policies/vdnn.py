"""vDNN: the feature maps that convolutions read, or all of them, wait on the host for the backward pass.

Source: vDNN (MICRO 2016), as Capuchin sections 1, 3.1 and 6.1, TENSILE section V-A and TSPLIT section VI
describe it: `vdnn_conv` swaps out what convolutions read, `vdnn_all` what any layer of the feature
extraction reads. Each layer waits for the copy of the layer before, and its backward pass copies back one
layer ahead. The choice is static: it asks neither for the memory there is nor for the time copies take.
Differs:
- Layers are read off the ops, from convolution to convolution (`analysis/layers.py`); the network's input is
  a feature map too. What a layer saves for its own backward op alone (a batch norm's statistics, a pooling's
  indices) is no feature map, and stays, as in the paper.
- Copies and waits: `choosing/offload.py`.
- The paper's other half, the choice of a convolution's algorithm by the memory that is left, has no
  counterpart: an op here is one kernel.
"""

from collections.abc import Sequence

from tensile_db.errors import InvalidRequest
from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.layers import Layers
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.offload import swap_with_layers
from tensile_db.scheduler.plan import DeviceSpec, Plan
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.follow import assemble_followed
from tensile_db.scheduler.shares import plan_as_they_are


def plan_conv(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job by vDNN_conv.  Raises DoesNotFit, and InvalidRequest as `plan_one_conv`."""
    return plan_as_they_are(jobs, device, memory_nbytes, plan_one_conv, _HINT)


def plan_all(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job by vDNN_all.  Raises DoesNotFit, and InvalidRequest as `plan_one_all`."""
    return plan_as_they_are(jobs, device, memory_nbytes, plan_one_all, _HINT)


_HINT = (
    "The vDNN policies swap the same tensors whatever the memory is: use the policy auto, or smaller batches."
)


def plan_one_conv(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan a job by vDNN_conv; neither budget nor sharers change the plan, nor the device its choices.

    Raises InvalidRequest for a training step without convolutions.
    """
    return _plan_one(request, device, "vdnn_conv", read_by_convolutions=True)


def plan_one_all(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan a job by vDNN_all; neither budget nor sharers change the plan, nor the device its choices.

    Raises InvalidRequest for a training step without convolutions.
    """
    return _plan_one(request, device, "vdnn_all", read_by_convolutions=False)


def _plan_one(request: JobRequest, device: DeviceSpec, policy: str, *, read_by_convolutions: bool) -> Plan:
    residency = Residency(request.graph, request.latencies_ns)
    layers = Layers(residency.table)
    has_backward = layers.backward_begin < len(residency.table.order)
    # A forward pass alone saves nothing, so there is nothing to swap, and nothing wrong.
    if has_backward and not layers.convolutions:
        raise InvalidRequest(
            f'policy "{policy}" swaps feature maps of convolutions, and this network has none',
            hint="Use the policy auto or capuchin, which work on any network.",
        )
    swap_with_layers(residency, layers, _feature_maps(layers, read_by_convolutions=read_by_convolutions))
    return assemble_followed(residency, request.latencies_ns, device, policy)


def _feature_maps(layers: Layers, *, read_by_convolutions: bool) -> list[TensorId]:
    """Return the tensors that layers of the feature extraction read and the backward pass needs again."""
    graph, order = layers.table.graph, layers.table.order
    end = layers.classifier_begin
    readers = layers.convolutions if read_by_convolutions else range(end)
    read = {tensor for position in readers if position < end for tensor in graph.ops[order[position]].reads}
    saved = [tensor for tensor in sorted(read) if layers.is_saved(tensor) and layers.feeds_forward(tensor)]
    # What the classifier reads is its own, and stays.
    return [tensor for tensor in saved if (last := layers.last_forward(tensor)) is not None and last < end]
