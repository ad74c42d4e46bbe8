"""What an ATen operator does to its arguments: reads, writes, draws, costs.

Taken from the operator's schema, and by hand where the schema is silent.

Source: ATen's native_functions.yaml; torch.utils.flop_counter.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from tensile_db.capture.step import RandomSource, View

# PyTorch gives an operator's schema no public name.
# ruff: noqa: SLF001

aten = torch.ops.aten

#: Batch norms whose schema does not mark that they update running_mean and running_var (pytorch#88697),
#: with the places of running_mean, running_var and training among their arguments.
_SILENT_BATCH_NORMS: Mapping[torch._ops.OpOverload, tuple[int, int, int]] = {
    aten.native_batch_norm.default: (3, 4, 5),
    aten.cudnn_batch_norm.default: (3, 4, 5),
    aten.miopen_batch_norm.default: (3, 4, 5),
}

#: Other operators whose schema does not mark what they update, with its places among their arguments.
_SILENT_UPDATES: Mapping[torch._ops.OpOverload, tuple[int, ...]] = {
    # The workspace of the forward pass (ideep's lstm_backward), which no other op reads.
    aten.mkldnn_rnn_layer_backward.default: (22,),
}


#: Operators that have no result: they raise an error where what they are given tells of one.
_CHECKS: frozenset[torch._ops.OpOverload] = frozenset({aten._linalg_check_errors.default})


def is_check(function: torch._ops.OpOverload) -> bool:
    """Tell whether the call is there for the error alone that it may raise."""
    return function in _CHECKS


def bound_arguments(
    function: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterable[tuple[torch.Argument, Any]]:
    """Return each schema argument that was given, with its value."""
    for index, argument in enumerate(function._schema.arguments):
        if index < len(args):
            yield argument, args[index]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def written_arguments(
    function: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Return the arguments that the call updates in place."""
    written = [
        value
        for argument, value in bound_arguments(function, args, kwargs)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if (places := _SILENT_BATCH_NORMS.get(function)) is not None:
        mean, variance, training = places
        if args[training]:
            written += [value for value in (args[mean], args[variance]) if value is not None]
    return written + [args[place] for place in _SILENT_UPDATES.get(function, ())]


def recompute_arguments(function: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return arguments with which the call makes the same results and updates nothing persistent.

    None where there are none but `args` itself.  A training batch norm normalizes with the batch's own
    statistics, so that it makes the same results without the running ones.
    """
    if (places := _SILENT_BATCH_NORMS.get(function)) is None:
        return None
    mean, variance, training = places
    if not args[training] or args[mean] is None:
        return None
    return tuple(None if index in (mean, variance) else value for index, value in enumerate(args))


def is_random(function: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Tell whether the call draws random numbers.

    Fused attention is tagged as random whether or not it drops anything out.
    """
    if torch.Tag.nondeterministic_seeded not in function.tags:
        return False
    for argument in function._schema.arguments:
        if argument.name == "dropout_p":
            given = {bound.name: value for bound, value in bound_arguments(function, args, kwargs)}
            return bool(given.get("dropout_p", argument.default_value) != 0.0)
    return True


def with_random_source(
    function: torch._ops.OpOverload, kwargs: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return kwargs with the job's generator in place; None where the operator takes no generator."""
    if any(argument.name == "generator" for argument in function._schema.arguments):
        return {**kwargs, "generator": RandomSource()}
    return None


def flops(
    function: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> int:
    """Return the call's floating-point operations; 0 where the counter has no formula for it."""
    formula = flop_registry.get(function._overloadpacket)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=result))


def view_nbytes(view: View) -> int:
    """Return the bytes that reading a view moves: an expanded dimension is read once."""
    count = 1
    for size, stride in zip(view.size, view.stride, strict=True):
        count *= size if stride != 0 or size == 0 else 1
    return count * view.dtype.itemsize
