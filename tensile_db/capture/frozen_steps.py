"""Captures the steps of a training with a frozen backbone: what is done once, and what in each iteration.

Source: ours.
"""

from dataclasses import dataclass

import torch

from tensile_db.capture.backbone import Backbone, find_backbone, taken_by_name
from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.forward_step import TracedForward, lower_forward_step, no_scalars
from tensile_db.capture.lowering import Lowering
from tensile_db.capture.precision import Precision
from tensile_db.capture.step import CapturedStep
from tensile_db.capture.train_step import TracedTraining, lower_train_step
from tensile_db.graph import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class BackboneFeature:
    """One tensor that the head takes of the backbone."""

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

    #: The backbone going forward; inputs as of the whole step, but those of the targets; an output for each
    #: of `features`, in their order.
    backbone: CapturedStep
    #: The training step of the rest, whose inputs begin with these outputs.
    head: CapturedStep
    features: tuple[BackboneFeature, ...]


def frozen_steps(training: TracedTraining, forward: TracedForward) -> FrozenSteps | None:
    """Return a training step in two, the backbone's being the same in a forward step with as many rows.

    None where there is nothing to be done once: that the backbone makes anything, that each row has its own
    part of it, and that evaluation makes the same, is not so of every network.
    """
    backbone, again = _backbone_of(training), _backbone_of(forward)
    if backbone is None or again is None:
        return None
    step = _lowered(training, backbone)
    if step.calls != _lowered(forward, again).calls:
        return None
    return FrozenSteps(
        backbone=step,
        head=lower_train_step(training, backbone.head),
        features=tuple(
            BackboneFeature(dtype=taken.dtype, shape=tuple(taken.shape[1:])) for taken in backbone.taken
        ),
    )


def head_forward_step(forward: TracedForward) -> CapturedStep:
    """Return the forward step of the head alone, of a network of which `frozen_steps` finds a backbone."""
    backbone = _backbone_of(forward)
    assert backbone is not None, "the network has a backbone with other batches"
    return lower_forward_step(forward, backbone.head)


def _backbone_of(traced: TracedTraining | TracedForward) -> Backbone | None:
    return find_backbone(traced.trace, traced.input_names, trained=traced.trained)


def _lowered(traced: TracedTraining | TracedForward, backbone: Backbone) -> CapturedStep:
    """Return the step of the backbone alone."""
    builder = StepBuilder(traced.device)
    lowering = Lowering(traced.trace, builder, only=backbone.backbone)
    lowering.add_state(backbone.backbone_state)
    lowering.add_inputs(backbone.inputs(lowering.inputs(traced.input_names)))
    lowering.add_calls()
    outputs = {name: lowering.view(value) for name, value in taken_by_name(backbone.taken).items()}
    builder.report(outputs, phase=Phase.FORWARD)
    return builder.build(no_scalars, tf32=traced.precision is Precision.TF32)
