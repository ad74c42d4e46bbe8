"""Calls over tensors that stay where they are: what is run one by one between the passages of a recording.

A call that makes its result would have it anywhere; so its `out` variant is called, whose kernel is the same,
with the place that the recording has for it.
"""

# A schema has no public name.
# ruff: noqa: SLF001

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from tensile_db.capture.step import Call, RandomSource, Scalar, View
from tensile_db.graph import Op
from tensile_db.worker.devices.recording import NotRecorded
from tensile_db.worker.execution.calls import drawing_from
from tensile_db.worker.execution.device_failures import Asked, op_failure

#: The tensor that a view is, for good.
TensorOf = Callable[[View], torch.Tensor]


def by_argument(calls: Iterable[Sequence[View]], tensor_of: TensorOf) -> list[list[torch.Tensor]]:
    """Return, of each argument of calls of one operator, the tensors of all calls."""
    return [[tensor_of(view) for view in views] for views in zip(*calls, strict=True)]


def fixed_call(
    op: Op,
    call: Call,
    tensor_of: TensorOf,
    scalars: Mapping[str, float],
    *,
    device: Asked,
    generator: torch.Generator,
    default_generator: torch.Generator,
    in_float32: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[[], None]:
    """Return a function that runs the call on tensors that stay; scalars: by name, as they are when it runs.

    device: asked, where the call fails, whether it is lost.
    It raises what op_failure tells of.
    Raises NotRecorded where the result cannot be had in a given place.
    """
    assert call.function is not None, f"op {op.id} {op.target} is none of PyTorch's"
    function, named = call.function, dict(call.kwargs)
    made = [view for view in call.outputs if view is not None]
    if made:
        variant = out_variant(call.function) if len(call.outputs) == 1 else None
        if variant is None:
            raise NotRecorded(
                f"op {op.id} ({op.target}) takes a number that changes, and makes a result in no given place"
            )
        function, named = variant, {**named, "out": made[0]}
    function = in_float32(function)
    if call.draws_from_default_generator:
        # Outermost, as in compile_call.
        function = drawing_from(generator, default_generator, function)
    names, count = tuple(named), len(call.args)
    makers = [_maker(each, tensor_of, scalars, generator) for each in (*call.args, *named.values())]

    def run() -> None:
        values = [make() for make in makers]
        try:
            function(*values[:count], **dict(zip(names, values[count:], strict=True)))
        except Exception as error:
            raise op_failure(op, error, device) from error

    return run


def out_variant(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the overload of an operator that takes the same arguments, and `out` for its one result."""
    if not isinstance(function, OpOverload):
        variant: Callable[..., Any] | None = getattr(function, "out_variant", None)
        return variant
    wanted = _signature(function._schema.arguments)
    packet = function.overloadpacket
    for name in packet.overloads():
        overload: OpOverload = getattr(packet, name)
        arguments = overload._schema.arguments
        outs = [argument.name for argument in arguments if argument.is_out]
        if outs == ["out"] and _signature([each for each in arguments if not each.is_out]) == wanted:
            return overload
    return None


def _signature(arguments: Sequence[Any]) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in arguments]


def _maker(
    argument: Any, tensor_of: TensorOf, scalars: Mapping[str, float], generator: torch.Generator
) -> Callable[[], Any]:
    match argument:
        case View():
            return _constant(tensor_of(argument))
        case Scalar(name=name):
            return lambda: scalars[name]
        case RandomSource():
            return _constant(generator)
        case list() | tuple():
            items = [_maker(item, tensor_of, scalars, generator) for item in argument]
            return lambda: [make() for make in items]
        case _:
            return _constant(argument)


def _constant(value: Any) -> Callable[[], Any]:
    return lambda: value
