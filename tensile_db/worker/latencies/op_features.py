"""What a captured call's latency depends on, as numbers: dimensions, layouts and parameters of its arguments.

Source: TENSILE section IV-A.  Differs: a dimension beyond the fifth counts with the fifth; layouts are
features, for a kernel that reads a transposed matrix or an expanded one takes another time.
"""

from collections.abc import Iterator, Mapping
from math import log2, prod
from typing import Any

import torch
from torch._ops import OpOverload

from tensile_db.capture.builder import views
from tensile_db.capture.operators import bound_arguments
from tensile_db.capture.step import Call, CapturedStep, View
from tensile_db.graph import Op
from tensile_db.latency.features import FLOPS, MOVED_NBYTES, PARAMETER, SIZE, OpFeatures

#: Dimensions of a tensor that are told apart.
_DIMENSIONS = 5
#: Numbers of a list that are told apart, e.g. of a stride.
_LIST_LENGTH = 4

Feature = tuple[str, float]


def step_features(step: CapturedStep) -> tuple[OpFeatures, ...]:
    """Return the features of each op, by op id."""
    return tuple(op_features(op, call) for op, call in zip(step.graph.ops, step.calls, strict=True))


def op_features(op: Op, call: Call) -> OpFeatures:
    """Return the features of an op that is carried out as `call`."""
    features = dict(_of_arguments(call))
    features[FLOPS] = _log(op.flops)
    features[MOVED_NBYTES] = _log(op.moved_nbytes)
    names = tuple(sorted(features))
    return OpFeatures(
        kind=_kind(op, call),
        names=names,
        values=tuple(features[name] for name in names),
        flops=op.flops,
        moved_nbytes=op.moved_nbytes,
    )


def _kind(op: Op, call: Call) -> str:
    first = next(views((call.args, call.kwargs, call.outputs)), None)
    if first is None or first.dtype == torch.float32 or call.function is None:
        return op.target
    return f"{op.target}:{str(first.dtype).removeprefix('torch.')}"


def _of_arguments(call: Call) -> Iterator[Feature]:
    if call.function is None:
        return
    assert isinstance(call.function, OpOverload), "calls are of ATen's operators"
    given: Mapping[str, Any] = {
        argument.name: value for argument, value in bound_arguments(call.function, call.args, call.kwargs)
    }
    for argument in call.function._schema.arguments:  # noqa: SLF001 - a schema has no public name
        value = given.get(argument.name, argument.default_value)
        match str(argument.type).replace("Optional[", "").rstrip("]"):
            case "Tensor":
                # A number in the place of a tensor is as good as none.
                yield from _of_tensor(argument.name, value if isinstance(value, View) else None)
            case "List[Tensor":
                yield from _of_tensors(argument.name, value)
            case "int" | "bool":
                yield f"{PARAMETER}{argument.name}", _signed_log(value)
            case "List[int" | "List[bool":
                yield from _of_numbers(argument.name, value)
            case _:
                # Scalars, dtypes, generators: nothing that a kernel's time depends on.
                continue


def _of_tensor(name: str, view: View | None) -> Iterator[Feature]:
    size = () if view is None else view.size
    leading = size[: _DIMENSIONS - 1]
    dimensions = (*leading, *(1,) * (_DIMENSIONS - 1 - len(leading)), prod(size[_DIMENSIONS - 1 :]))
    for place, dimension in enumerate(dimensions):
        yield f"{SIZE}{name}.{place}", _log(dimension)
    yield f"{PARAMETER}{name}.given", float(view is not None)
    yield f"{PARAMETER}{name}.strided", float(view is not None and not _is_contiguous(view))
    expanded = view is not None and any(s == 0 and n > 1 for s, n in zip(view.stride, view.size, strict=True))
    yield f"{PARAMETER}{name}.expanded", float(expanded)


def _of_tensors(name: str, value: Any) -> Iterator[Feature]:
    given = list(views(value))
    yield f"{SIZE}{name}.count", _log(len(given))
    yield from _of_tensor(f"{name}.first", given[0] if given else None)


def _of_numbers(name: str, value: Any) -> Iterator[Feature]:
    given = value if isinstance(value, list | tuple) else [] if value is None else [value]
    numbers = [*given, *[0] * _LIST_LENGTH][:_LIST_LENGTH]
    prefix = SIZE if name.endswith(("size", "sizes", "shape")) else PARAMETER
    for place, number in enumerate(numbers):
        yield f"{prefix}{name}.{place}", _signed_log(number)


def _is_contiguous(view: View) -> bool:
    stride = 1
    for size, actual in zip(reversed(view.size), reversed(view.stride), strict=True):
        if size != 1 and actual != stride:
            return False
        stride *= size
    return True


def _log(size: int) -> float:
    return log2(max(1, size))


def _signed_log(number: Any) -> float:
    if not isinstance(number, int):
        # A number that changes from iteration to iteration, or none.
        return 0.0
    return log2(1 + number) if number >= 0 else -log2(1 - number)
