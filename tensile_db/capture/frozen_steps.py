"""Captures a training with a frozen backbone in two steps: the backbone's, run once, and the head's.

Source: ours.
"""

from dataclasses import dataclass

import torch

from tensile_db.capture.backbone import Partition, find_partition
from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.forward_step import lower_forward_step, no_scalars
from tensile_db.capture.lowering import Lowering
from tensile_db.capture.precision import Precision
from tensile_db.capture.step import CapturedStep
from tensile_db.capture.step_digest import step_digest
from tensile_db.capture.trace import TracedStep
from tensile_db.capture.train_step import TracedTraining, lower_train_step
from tensile_db.graph import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneFeature:
    """One tensor that the backbone hands over to the head."""

    dtype: torch.dtype
    #: Of one row.
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


@dataclass(frozen=True, kw_only=True)
class FrozenSteps:
    """A training step in two."""

    #: Goes forward.  Takes those inputs of the whole step that are features; has an output for each of
    #: `features`, in their order.
    backbone: CapturedStep
    #: Trains.  Takes these outputs, then the other inputs of the whole step.
    head: CapturedStep
    features: tuple[BackboneFeature, ...]


def frozen_steps(training: TracedTraining, forward: TracedStep) -> FrozenSteps | None:
    """Return a training step in two; forward: the same network in evaluation, with as many rows.

    None where the backbone has nothing to hand over of each row (`find_partition`), or does something else in
    evaluation, whose batches are made of the same features.
    """
    partition, in_evaluation = _partition_of(training), _partition_of(forward)
    if partition is None or in_evaluation is None:
        return None
    backbone = _backbone_step(training, partition)
    if step_digest(backbone) != step_digest(_backbone_step(forward, in_evaluation)):
        return None
    return FrozenSteps(
        backbone=backbone, head=lower_train_step(training, partition), features=_features_of(partition)
    )


def head_forward_step(forward: TracedStep, features: tuple[BackboneFeature, ...]) -> CapturedStep | None:
    """Return the head going forward over such features; None where with as many rows it takes others."""
    partition = _partition_of(forward)
    if partition is None or _features_of(partition) != features:
        return None
    return lower_forward_step(forward, partition)


def _features_of(partition: Partition) -> tuple[BackboneFeature, ...]:
    return tuple(
        BackboneFeature(dtype=each.dtype, shape=tuple(each.shape[1:])) for each in partition.features
    )


def _partition_of(traced: TracedStep) -> Partition | None:
    return find_partition(traced.trace, traced.input_names, trained=traced.trained)


def _backbone_step(traced: TracedStep, partition: Partition) -> CapturedStep:
    builder = StepBuilder(traced.device)
    lowering = Lowering(traced.trace, builder, part=partition.backbone)
    lowering.add_state()
    lowering.add_inputs(partition.backbone_inputs(lowering.inputs(traced.input_names)))
    lowering.add_calls()
    outputs = {name: lowering.view(value) for name, value in partition.outputs().items()}
    builder.report(outputs, phase=Phase.FORWARD)
    return builder.build(no_scalars, tf32=traced.precision is Precision.TF32)
