"""Marks ops that can be given a tensor's code in place of it, or take its shape alone.

So a rectifier's results need not be kept for its gradient where nobody else takes their values, nor what
dropout drew, whose product takes the signs going forward, too; and the indices of pooling take two bytes each
(`scheduler/packing`, `packed_step.py`).

Source: ours; what each operator takes, ATen's kernels.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import torch
from torch._ops import OpOverload

from tensile_db.capture.builder import views
from tensile_db.capture.operators import written_arguments
from tensile_db.capture.step import Call, CapturedStep, View
from tensile_db.graph import Code, Op, Phase, StepGraph, TensorId

aten = torch.ops.aten

#: Whose elements every kernel tells above zero alike.
_FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})
_UINT16S = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    codes: tuple[tuple[TensorId, Code], ...] = ()
    shapes: tuple[TensorId, ...] = ()


def with_codes(step: CapturedStep) -> CapturedStep:
    """Return the step with its ops' `codes` and `shapes`."""
    return replace(step, graph=StepGraph(tensors=step.graph.tensors, ops=tuple(_marked(step))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    step: CapturedStep
    call: Call
    drawn: Mapping[TensorId, float]


def _marked(step: CapturedStep) -> Iterator[Op]:
    drawn = drawn_numbers(step)
    for op, call in zip(step.graph.ops, step.calls, strict=True):
        rule = _RULES.get(call.function)
        if rule is not None and op.phase is not Phase.OPTIMIZER:
            found = rule(_Asked(step=step, call=call, drawn=drawn))
            yield replace(op, codes=found.codes, shapes=found.shapes)
        else:
            yield op


def _threshold_backward(asked: _Asked) -> _Marks:
    grad, x, threshold = asked.call.args
    if threshold != 0 or x.dtype not in _FLOATS:
        return _Marks()
    return _signs(asked, grad, x)


def _mul(asked: _Asked) -> _Marks:
    factors = drawn_factor(asked.call, asked.drawn)
    return _Marks() if factors is None else _signs(asked, *factors)


def _native_dropout_backward(asked: _Asked) -> _Marks:
    grad, mask, _ = asked.call.args
    return _signs(asked, grad, mask) if mask.dtype is torch.bool else _Marks()


def _signs(asked: _Asked, other: View, x: View) -> _Marks:
    """Return that x may be given as signs, where it is a storage with an element for each of the other's."""
    made = asked.call.outputs[0]
    if made is None or (x.size, x.stride) != (made.size, made.stride) or other.size != made.size:
        return _Marks()
    if x.dtype not in {*_FLOATS, torch.bool}:
        return _Marks()
    if other.dtype is not made.dtype or not _is_a_storage_read_once(asked, x):
        return _Marks()
    return _Marks(codes=((x.tensor, Code.SIGNS),))


def _max_pool2d_backward(asked: _Asked) -> _Marks:
    images, indices, made = asked.call.args[1], asked.call.args[-1], asked.call.outputs[0]
    whole = made is not None and (images.size, images.stride) == (made.size, made.stride)
    lies = next((lies for lies in (is_contiguous, is_channels_last) if lies(images)), None)
    if not whole or lies is None or not _is_read_once(asked.call, images):
        return _Marks()
    shapes = (images.tensor,)
    if prod(images.size[2:]) > _UINT16S or not lies(indices) or not _is_a_storage_read_once(asked, indices):
        return _Marks(shapes=shapes)
    return _Marks(codes=((indices.tensor, Code.UINT16),), shapes=shapes)


_RULES: Mapping[Any, Callable[[_Asked], _Marks]] = {
    aten.threshold_backward.default: _threshold_backward,
    aten.mul.Tensor: _mul,
    aten.native_dropout_backward.default: _native_dropout_backward,
    aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward,
}


def drawn_factor(call: Call, drawn: Mapping[TensorId, float]) -> tuple[View, View] | None:
    """Return the other factor of a product, and the one that was drawn; None where neither was.

    drawn: as of `drawn_numbers`.
    """
    one, two = call.args
    if not isinstance(one, View) or not isinstance(two, View):
        return None
    if two.tensor in drawn:
        return one, two
    return (two, one) if one.tensor in drawn else None


def drawn_numbers(step: CapturedStep) -> Mapping[TensorId, float]:
    """Return the tensors that have zeros and one number above zero, and that number.

    On the processor dropout draws such a one, and multiplies by it.
    """
    writers: dict[TensorId, list[Call]] = {}
    for call in step.calls:
        if not isinstance(call.function, OpOverload):
            continue
        made = [view for view in call.outputs if view is not None]
        for view in {*made, *views(written_arguments(call.function, call.args, call.kwargs))}:
            writers.setdefault(view.tensor, []).append(call)
    found = {}
    for tensor, (made_by, *changes) in writers.items():
        functions = [change.function for change in changes]
        whole = made_by.outputs[0]
        if functions == _DRAWS and all(change.args[0] == whole for change in changes):
            divided, by = changes[1].args
            found[tensor] = torch.ones((), dtype=divided.dtype).div_(by).item()
    return {tensor: number for tensor, number in found.items() if 0 < number < inf}


_DRAWS = [aten.bernoulli_.float, aten.div_.Scalar]


def _is_read_once(call: Call, view: View) -> bool:
    """Whether a call reads a tensor by this view alone."""
    return sum(other.tensor == view.tensor for other in views((call.args, call.kwargs))) == 1


def _is_a_storage_read_once(asked: _Asked, view: View) -> bool:
    """Whether a view is read once, and each element of its storage is one of it."""
    elements, end = prod(view.size), view.offset
    for size, stride in zip(view.size, view.stride, strict=True):
        end += (size - 1) * stride
    whole = asked.step.graph.tensors[view.tensor]
    is_dense = view.offset == 0 and elements == end + 1 and whole.nbytes == elements * view.dtype.itemsize
    is_its_dtype = whole.dtype == str(view.dtype).removeprefix("torch.")
    return is_dense and is_its_dtype and _is_read_once(asked.call, view)


def is_contiguous(view: View) -> bool:
    """Whether a view is an image batch that lies row by row, channel by channel."""
    if len(view.size) != 4:
        return False
    _, channels, height, width = view.size
    return view.stride == (channels * height * width, height * width, width, 1)


def is_channels_last(view: View) -> bool:
    """Whether a view is an image batch of which the channels of each pixel lie side by side."""
    if len(view.size) != 4:
        return False
    _, channels, height, width = view.size
    return view.stride == (channels * height * width, 1, channels * width, channels)
