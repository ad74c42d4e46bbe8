"""Networks built and captured by jobs' threads, one at a time.

While torch.fx traces a module it patches `nn.Module.__call__` for the whole process, so that no other thread
may trace, nor call a module.  Running jobs call operators only, and are not concerned, but for those whose
ops draw from the default generator: they wait while a network is built, whose weights are drawn from it.

Traces are kept for equal networks (traces.py), until a package's code has been run: that may do otherwise
each time, and change what timm's and PyTorch's does.

What a network's own code does cannot be broken off.  So `check`, which raises Stopped where the job is to
stop, is asked before it waits for its turn, and every 0.2 s while it waits.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from tensile_db.capture.composed import composed
from tensile_db.capture.forward_step import lower_forward_step, trace_forward_step
from tensile_db.capture.networks import architectures
from tensile_db.capture.networks.memory_format import laid_out
from tensile_db.capture.optimizers import OptimizerConfig
from tensile_db.capture.precision import Precision
from tensile_db.capture.trace import TracedStep
from tensile_db.capture.train_step import TracedTraining, lower_train_step, trace_train_step
from tensile_db.errors import NetworkTooLarge
from tensile_db.udf.options import NETWORK_OPTIONS, OPTIONS
from tensile_db.worker.host import available_memory_nbytes
from tensile_db.worker.jobs.traces import Traces

_ONE_AT_A_TIME = threading.Lock()
_TRACES = Traces()
#: A job that waits for its turn looks so often whether it is to stop.
_LOOK_UP_S = 0.2
#: Of its weights, at least: the network's and the job's.
_COPIES = 2


#: Raises where the job is to stop.
Check = Callable[[], None]


def _goes_on() -> None:
    """Nobody asks it to stop."""


def build(
    name: str,
    *,
    num_outputs: int,
    input_shape: tuple[int, ...],
    seed: int,
    options: Mapping[str, Any],
    check: Check = _goes_on,
) -> nn.Module:
    """Build a network; of the options, those that it knows, and the layout of its convolutions' weights.

    A package's gets all that are none of the job's own: only the package knows.
    Raises NetworkTooLarge rather than have the machine run out of memory.
    """
    own = own_options(name, options)
    with _alone(check):
        needed_nbytes = _COPIES * architectures.weights_nbytes(
            name, num_outputs=num_outputs, input_shape=input_shape, options=own
        )
        available_nbytes = available_memory_nbytes()
        if needed_nbytes > available_nbytes:
            raise NetworkTooLarge(needed_nbytes=needed_nbytes, available_nbytes=available_nbytes)
        architecture = architectures.resolve(name)
        if architecture.kind == "package":
            _TRACES.keep_no_more()
        model = architectures.build(
            name, num_outputs=num_outputs, input_shape=input_shape, seed=seed, options=own
        )
        model = laid_out(model, options.get("memory_format"))
        given = json.dumps([own, options.get("memory_format")], sort_keys=True)
        _TRACES.note_built(model, (architecture.resolves_to, num_outputs, input_shape, given))
        return model


def weight_shapes(
    name: str,
    *,
    num_outputs: int,
    input_shape: tuple[int, ...],
    options: Mapping[str, Any],
    check: Check = _goes_on,
) -> Mapping[str, tuple[int, ...]] | None:
    """Return the shapes of a network's parameters and buffers by name; None of a package's.

    Arguments as of `build`.
    """
    own = own_options(name, options)
    with _alone(check):
        return architectures.weight_shapes(
            name, num_outputs=num_outputs, input_shape=input_shape, options=own
        )


def image_size(name: str, source_size: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) that the network wants images of `source_size` in."""
    with _ONE_AT_A_TIME:
        return architectures.default_image_size(name, source_size)


def traced_training(
    model: nn.Module,
    *,
    batch_shape: tuple[int, ...],
    task: str,
    optimizer: OptimizerConfig,
    device: torch.device,
    precision: Precision = Precision.FLOAT32,
    byte_channels: int | None = None,
    num_class_weights: int | None = None,
    num_outputs: int | None = None,
    architecture: str | None = None,
    is_frozen: bool = False,
    check: Check = _goes_on,
) -> TracedTraining:
    """Trace a training step; task: "classification" or "regression"; architecture: its name.

    num_outputs: that it was built for.  is_frozen: that only the layer of these is trained.
    """
    step = ("training", batch_shape, task, device, precision, byte_channels, num_class_weights, is_frozen)

    def trace() -> TracedTraining:
        return trace_train_step(
            model,
            batch_shape=batch_shape,
            target="classes" if task == "classification" else "values",
            optimizer=optimizer,
            device=device,
            precision=precision,
            byte_channels=byte_channels,
            num_class_weights=num_class_weights,
            num_outputs=num_outputs,
            architecture=architecture,
            is_frozen=is_frozen,
        )

    with _alone(check):
        # The optimizer's part is not traced.
        return replace(_TRACES.of(model, step, trace), optimizer=optimizer)


def traced_forward(
    model: nn.Module,
    *,
    batch_shape: tuple[int, ...],
    device: torch.device,
    precision: Precision,
    architecture: str | None,
    num_outputs: int,
    byte_channels: int | None = None,
    check: Check = _goes_on,
) -> TracedStep:
    """Trace the network going forward; architecture: its name; num_outputs: that it was built for."""
    step = ("forward", batch_shape, device, precision, byte_channels)

    def trace() -> TracedStep:
        return trace_forward_step(
            model,
            batch_shape,
            device=device,
            precision=precision,
            byte_channels=byte_channels,
            num_outputs=num_outputs,
            architecture=architecture,
        )

    with _alone(check):
        return _TRACES.of(model, step, trace)


#: Capture these steps: arguments as above.
train_step = composed(traced_training, lower_train_step)
forward_step = composed(traced_forward, lower_forward_step)


@contextmanager
def _alone(check: Check) -> Iterator[None]:
    check()
    while not _ONE_AT_A_TIME.acquire(timeout=_LOOK_UP_S):
        check()
    try:
        yield
    finally:
        _ONE_AT_A_TIME.release()


def own_options(name: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options that a network knows."""
    known = architectures.option_names(name)
    if known is None:
        known = tuple(option for option in options if option not in OPTIONS or option in NETWORK_OPTIONS)
    return {option: v for option, v in options.items() if option in known}
