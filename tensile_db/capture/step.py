"""A captured step: the graph for the planner, and the calls for the executor.

`calls[i]` says how `graph.ops[i]` is carried out.  Views are gone: each argument names the storage and
the window onto it, so that a storage may live at another address in every iteration.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tensile_db.graph import OpId, StepGraph, TensorId


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A window onto a storage; size, stride and offset in elements of dtype."""

    tensor: TensorId
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A number that changes from iteration to iteration, e.g. Adam's bias-corrected step size."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomSource:
    """Stands where an op takes a torch.Generator: the job's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How an op is carried out.

    args and kwargs hold View, Scalar, RandomSource, constants, and lists or tuples of these.
    """

    op: OpId
    #: An OpOverload; None for tensile.load_batch and tensile.report.
    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    #: One per tensor that the function returns, in order: the new storage that it makes, or None where
    #: the result is an argument written in place, or nothing.
    outputs: tuple[View | None, ...]
    #: Draws random numbers without taking a generator argument: the default generator must be the job's.
    draws_from_default_generator: bool
    #: Arguments for running it again with persistent tensors untouched; None: the same as `args`.
    recompute_args: tuple[Any, ...] | None


@dataclass(frozen=True, kw_only=True)
class CapturedStep:
    """A step of one job, for one batch shape."""

    graph: StepGraph
    calls: tuple[Call, ...]
    #: What tensile.load_batch fills, in the batch's order (features, then target if there is one).
    inputs: tuple[View, ...]
    #: What tensile.report reads, by name: "loss", and where it is scaled what loss_scale.py has besides; or
    #: "logits" of a forward-only step.
    outputs: Mapping[str, View]
    #: Persistent tensors by name ("parameter/…", "buffer/…", "optimizer_state/…/exp_avg", "loss_scale/…").
    state: Mapping[str, View]
    #: 1-based number of the update -> the value of each Scalar.
    scalars: Callable[[int], Mapping[str, float]]
    #: Its kernels may shorten float32's fraction to 10 bits, where the device has such.
    tf32: bool = False
