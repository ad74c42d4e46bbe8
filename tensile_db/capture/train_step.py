"""Captures a whole training step: forward, loss, backward, optimizer.

Source: TENSILE section III-A.  What makes it exact: docs/architecture.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from tensile_db.capture.backbone import Partition
from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.clipping import GradientClipping
from tensile_db.capture.codes import with_codes
from tensile_db.capture.composed import composed
from tensile_db.capture.loss_scale import GROWTH_TRACKER, SCALE, LossScaling
from tensile_db.capture.lowering import Lowering
from tensile_db.capture.networks.freezing import frozen_modules
from tensile_db.capture.optimizers import OptimizerConfig, emit_update, scalars_of, slots
from tensile_db.capture.outputs import require_outputs
from tensile_db.capture.parts import Part
from tensile_db.capture.pixels import bytes_for_features
from tensile_db.capture.precision import Precision
from tensile_db.capture.splitting.splittings import with_splittings
from tensile_db.capture.step import CapturedStep, View
from tensile_db.capture.trace import Layout, Trace, TracedStep, trace_step
from tensile_db.errors import InvalidRequest
from tensile_db.graph import Phase, Role

#: "classes": int64 labels and cross entropy.  "values": float32 numbers and the mean squared error.
Target = Literal["classes", "values"]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTraining(TracedStep):
    """A training step that is traced."""

    optimizer: OptimizerConfig


def trace_train_step(
    model: nn.Module,
    *,
    batch_shape: tuple[int, ...],
    target: Target,
    optimizer: OptimizerConfig,
    device: torch.device | None = None,
    features_dtype: torch.dtype = torch.float32,
    targets_per_row: int = 1,
    precision: Precision = Precision.FLOAT32,
    byte_channels: int | None = None,
    num_class_weights: int | None = None,
    num_outputs: int | None = None,
    architecture: str | None = None,
    is_frozen: bool = False,
) -> TracedTraining:
    """Trace one training step of the model on batches of one shape.

    batch_shape: of the features as the model takes them, the number of rows first.
    features_dtype: int64 for tokens.
    byte_channels: of images that come as bytes and are normalised in the step (pixels.py); None: features
    come as the model takes them.
    num_class_weights: of classes alone: how many there are, each with a weight in the loss; None: all rows
    count alike.
    targets_per_row: more than one where each token or pixel has its own; the model then returns as many rows
    of outputs for each row of features.
    precision: of forward pass, loss and backward pass; parameters, their gradients and the optimizer's
    state are float32 in any.
    num_outputs: of a row, as was asked for; None: as many as the model returns.
    architecture: the model's name, for errors.
    is_frozen: parameters that require no gradient are a backbone's, whose modules do as in evaluation: batch
    norms go by what they have learned, and dropout drops nothing.
    device: where the step will run, the CPU by default; operators differ between kinds of device.
    Inputs are "features" and "target", with weights "class_weights", float32 [classes], and for bytes
    "normalisation"; the output is "loss", and what loss_scale.py and clipping.py have besides.
    No device memory is used.
    Raises InvalidRequest where the model cannot be trained on such batches.
    """
    device = device or torch.device("cpu")
    labels = Layout(
        shape=(batch_shape[0] * targets_per_row,),
        dtype=torch.int64 if target == "classes" else torch.float32,
    )
    assert num_class_weights is None or target == "classes", "numbers have no classes"
    given = {"features": Layout(shape=batch_shape, dtype=features_dtype), "target": labels}
    if num_class_weights is not None:
        given["class_weights"] = Layout(shape=(num_class_weights,), dtype=torch.float32)
    batch, prepare = bytes_for_features(given, byte_channels)

    def loss_of(output: torch.Tensor, rest: Sequence[torch.Tensor]) -> torch.Tensor:
        require_outputs(output, rows=len(rest[0]), num_outputs=num_outputs, architecture=architecture)
        return (_cross_entropy if target == "classes" else _mean_squared_error)(output, *rest)

    trace = trace_step(
        model,
        list(batch.values()),
        loss_of,
        training=True,
        device=device,
        precision=precision,
        prepare=prepare,
        architecture=architecture,
        evaluated=tuple(frozen_modules(model)) if is_frozen else (),
    )
    return TracedTraining(
        trace=trace,
        input_names=tuple(batch),
        trained=frozenset(name for name, own in model.named_parameters() if own.requires_grad),
        optimizer=optimizer,
        precision=precision,
        device=device,
    )


def lower_train_step(traced: TracedTraining, partition: Partition | None = None) -> CapturedStep:
    """Return the captured step; partition: of the head alone, which takes what the backbone hands over."""
    trace, optimizer = traced.trace, traced.optimizer
    builder = StepBuilder(traced.device)
    clipping = None
    if optimizer.max_gradient_norm is not None:
        clipping = GradientClipping(builder, optimizer.max_gradient_norm)
    lowering = Lowering(
        trace,
        builder,
        keeps_gradients=SCALE in trace.state or clipping is not None,
        part=None if partition is None else partition.head,
    )
    lowering.add_state()
    parameters = _parameters(lowering)
    trained = {name: parameters[name] for name in parameters if name in traced.trained}
    parts = {name: lowering.update_parts(name) for name in trained}
    state = _add_optimizer_state(builder, optimizer, trained, parts)
    inputs = lowering.inputs(traced.input_names)
    lowering.add_inputs(inputs if partition is None else partition.head_inputs(inputs))
    scaling, kept = _add_calls(builder, lowering, trace, parameters, clipping)
    applies = None if scaling is None else scaling.all_finite()
    factor = None if clipping is None else clipping.factor(trained)
    for name, node in trace.gradients.items():
        parameter = parameters[name]
        if name in lowering.gradients_in_parts:
            windows = lowering.gradients_in_parts[name]
        elif name in kept:
            if clipping is not None and factor is not None:
                clipping.clip(kept[name], factor)
            windows = _windows(kept[name], parts[name])
        else:
            gradient = _laid_out_as(builder, name, parameter, lowering.view_of(node))
            windows = _windows(gradient, parts[name])
        emit_update(
            builder,
            optimizer,
            name=name,
            parts=list(zip(_windows(parameter, parts[name]), windows, strict=True)),
            state=state[name],
            applies=applies,
        )
    outputs = {"loss": lowering.view_of(trace.result)}
    if scaling is not None:
        scaling.adjust()
        outputs |= scaling.outputs
    if clipping is not None:
        outputs |= clipping.outputs
    builder.report(outputs, phase=Phase.OPTIMIZER)
    tf32 = traced.precision is Precision.TF32
    return with_codes(with_splittings(builder.build(scalars_of(optimizer), tf32=tf32)))


#: Captures a training step: arguments as of `trace_train_step`, all of it lowered.
capture_train_step = composed(trace_train_step, lower_train_step)


def _cross_entropy(
    output: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    return functional.cross_entropy(output, labels, weights)


def _mean_squared_error(output: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if output.shape[1] != 1:
        raise InvalidRequest(
            f"a numeric target needs one output, but the model has {output.shape[1]}",
            hint="Build the model with num_outputs=1.",
        )
    return functional.mse_loss(output.squeeze(1), values)


def _parameters(lowering: Lowering) -> dict[str, View]:
    prefix = "parameter/"
    return {
        name.removeprefix(prefix): lowering.view_of(node)
        for name, node in lowering.state().items()
        if name.startswith(prefix)
    }


def _add_calls(
    builder: StepBuilder,
    lowering: Lowering,
    trace: Trace,
    parameters: Mapping[str, View],
    clipping: GradientClipping | None,
) -> tuple[LossScaling | None, Mapping[str, View]]:
    """Add the calls of forward and backward.

    Returns what has unscaled gradients, where the loss is scaled; and gradients by their parameters'
    qualified names, where all are kept until the last one is complete.
    """
    scaling = None
    if SCALE in trace.state:
        scaling = LossScaling(
            builder,
            scale=lowering.view_of(trace.state[SCALE]),
            growth_tracker=lowering.view_of(trace.state[GROWTH_TRACKER]),
        )
    if scaling is None and clipping is None:
        lowering.add_calls()
        return None, {}
    kept: dict[str, View] = {}

    def keep(name: str, gradient: View, is_alone: bool) -> None:
        own = _laid_out_as(builder, name, parameters[name], gradient)
        if own is gradient and not is_alone:
            own = _copied(builder, name, parameters[name], gradient)
        if scaling is not None:
            scaling.unscale(own)
        if clipping is not None:
            clipping.measure(name, own)
        kept[name] = own

    lowering.add_calls(keep)
    return scaling, kept


def _windows(whole: View, parts: Sequence[Part]) -> list[View]:
    """Return the flat windows of the parts; the whole where there are none."""
    return [part.window(whole) for part in parts] or [whole]


def _add_optimizer_state(
    builder: StepBuilder,
    optimizer: OptimizerConfig,
    parameters: Mapping[str, View],
    parts: Mapping[str, Sequence[Part]],
) -> dict[str, dict[str, tuple[View, ...]]]:
    """Add the optimizer's state for every trained parameter, by qualified name and slot, in parts."""
    state: dict[str, dict[str, tuple[View, ...]]] = {}
    for name, parameter in parameters.items():
        state[name] = {
            slot: _add_slot(builder, parameter, f"optimizer_state/{name}/{slot}", parts[name])
            for slot in slots(optimizer)
        }
    return state


def _add_slot(builder: StepBuilder, parameter: View, name: str, parts: Sequence[Part]) -> tuple[View, ...]:
    """Add a slot's tensor, or its parts where the parameter is large."""
    names = [part.name(name) for part in parts] or [name]
    views = []
    for each, window in zip(names, _windows(parameter, parts), strict=True):
        views.append(builder.add_dense(window, role=Role.OPTIMIZER_STATE, name=each))
        builder.add_state(each, views[-1])
    return tuple(views)


def _laid_out_as(builder: StepBuilder, name: str, parameter: View, gradient: View) -> View:
    """Return the gradient laid out as its parameter, which costs a copy where autograd's differs.

    Eager's AccumulateGrad does the same, and ignores the strides of dimensions of size 1
    (torch/csrc/autograd/utils/grad_layout_contract.h).
    """
    strides = zip(parameter.size, parameter.stride, gradient.stride, strict=True)
    if all(ours == autograds for size, ours, autograds in strides if size != 1):
        return gradient
    return _copied(builder, name, parameter, gradient)


def _copied(builder: StepBuilder, name: str, parameter: View, gradient: View) -> View:
    """Return a copy of the gradient, laid out as its parameter."""
    copy = builder.add_dense(parameter, role=Role.GRADIENT, name=f"{name}/gradient")
    builder.call(
        aten.empty_strided.default,
        (list(copy.size), list(copy.stride)),
        {"dtype": copy.dtype, "device": builder.device},
        phase=Phase.BACKWARD,
        outputs=(copy,),
    )
    builder.call(aten.copy_.default, (copy, gradient), phase=Phase.BACKWARD)
    return copy
