"""Captures a forward step in evaluation mode, for predictions and evaluations.

Its state has the names of the training step's parameters and buffers, so that trained weights fit.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from tensile_db.capture.backbone import Partition
from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.composed import composed
from tensile_db.capture.lowering import Lowering
from tensile_db.capture.outputs import require_outputs
from tensile_db.capture.pixels import bytes_for_features
from tensile_db.capture.precision import Precision
from tensile_db.capture.step import CapturedStep
from tensile_db.capture.trace import Layout, TracedStep, trace_step
from tensile_db.graph import Phase


def trace_forward_step(
    model: nn.Module,
    batch_shape: tuple[int, ...],
    *,
    device: torch.device | None = None,
    features_dtype: torch.dtype = torch.float32,
    precision: Precision = Precision.FLOAT32,
    byte_channels: int | None = None,
    num_outputs: int | None = None,
    architecture: str | None = None,
) -> TracedStep:
    """Trace the model's forward pass on batches of one shape, the number of rows first.

    features_dtype: int64 for tokens.
    byte_channels, architecture: as in trace_train_step.
    num_outputs: of each row, as was asked for; None: whatever the model returns is taken.
    Inputs are "features", and for bytes "normalisation"; the output is "logits", float32 in any precision.
    Nothing persistent is written.
    Raises InvalidRequest where the model cannot run on such batches.
    """
    device = device or torch.device("cpu")
    batch, prepare = bytes_for_features(
        {"features": Layout(shape=batch_shape, dtype=features_dtype)}, byte_channels
    )

    def logits_of(output: torch.Tensor, _rest: Sequence[torch.Tensor]) -> torch.Tensor:
        if num_outputs is not None:
            require_outputs(output, rows=batch_shape[0], num_outputs=num_outputs, architecture=architecture)
        return output.float()

    trace = trace_step(
        model,
        list(batch.values()),
        logits_of,
        training=False,
        device=device,
        precision=precision,
        prepare=prepare,
        architecture=architecture,
    )
    return TracedStep(
        trace=trace,
        input_names=tuple(batch),
        trained=frozenset(name for name, own in model.named_parameters() if own.requires_grad),
        precision=precision,
        device=device,
    )


def lower_forward_step(traced: TracedStep, partition: Partition | None = None) -> CapturedStep:
    """Return the captured step; partition: of the head alone, which takes what the backbone hands over."""
    builder = StepBuilder(traced.device)
    lowering = Lowering(traced.trace, builder, part=None if partition is None else partition.head)
    lowering.add_state()
    inputs = lowering.inputs(traced.input_names)
    lowering.add_inputs(inputs if partition is None else partition.head_inputs(inputs))
    lowering.add_calls()
    builder.report({"logits": lowering.view_of(traced.trace.result)}, phase=Phase.FORWARD)
    return builder.build(no_scalars, tf32=traced.precision is Precision.TF32)


#: Captures a forward step: arguments as of `trace_forward_step`, all of it lowered.
capture_forward_step = composed(trace_forward_step, lower_forward_step)


def no_scalars(_update: int) -> Mapping[str, float]:
    """Return none: nothing is updated."""
    return {}
