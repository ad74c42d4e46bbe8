"""Marks ops that take of a tensor which elements are above zero, or its shape, and no more.

Such an op can be run with a bit for each element, or without the tensor (`scheduler/packing`,
`packed_step.py`); so a rectifier's results need not be kept for its gradient where nobody else takes their
values.

Source: ours; what each operator takes, ATen's kernels.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch

from tensile_db.capture.builder import views
from tensile_db.capture.step import Call, CapturedStep, View
from tensile_db.graph import Op, StepGraph, TensorId

aten = torch.ops.aten

#: Whose elements can be told above zero by every kernel alike.
_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


def with_signs(step: CapturedStep) -> CapturedStep:
    """Return the step with its ops' `signs` and `shapes`."""
    return replace(step, graph=StepGraph(tensors=step.graph.tensors, ops=tuple(_marked(step))))


def _marked(step: CapturedStep) -> Iterator[Op]:
    for op, call in zip(step.graph.ops, step.calls, strict=True):
        signs, shapes = _SIGNS.get(call.function), _SHAPES.get(call.function)
        if signs is not None and (tensor := signs(step, call)) is not None:
            yield replace(op, signs=(tensor,))
        elif shapes is not None and (tensor := shapes(step, call)) is not None:
            yield replace(op, shapes=(tensor,))
        else:
            yield op


def _threshold_backward(step: CapturedStep, call: Call) -> TensorId | None:
    grad, x, threshold = call.args
    if threshold != 0 or not _lie_alike(grad, x, call.outputs[0]) or not _is_all_of_its_storage(step, x):
        return None
    return _read_once(call, x)


def _max_pool2d_backward(step: CapturedStep, call: Call) -> TensorId | None:
    images = call.args[1]
    if not _lie_alike(images, call.outputs[0]) or not _is_all_of_its_storage(step, images):
        return None
    if len(images.size) != 4 or not (is_contiguous(images) or is_channels_last(images)):
        return None
    return _read_once(call, images)


def _read_once(call: Call, view: View) -> TensorId | None:
    """Return the tensor of a view, unless the call reads that tensor otherwise, too."""
    read = [other for other in views((call.args, call.kwargs)) if other.tensor == view.tensor]
    return view.tensor if len(read) == 1 else None


def _lie_alike(*found: View | None) -> bool:
    first = found[0]
    assert first is not None
    return all(
        view is not None and (view.size, view.stride, view.dtype) == (first.size, first.stride, first.dtype)
        for view in found
    )


def _is_all_of_its_storage(step: CapturedStep, view: View) -> bool:
    """Whether each element of the storage is one of the view, and of a dtype that can be packed."""
    elements, end = 1, view.offset
    for size, stride in zip(view.size, view.stride, strict=True):
        elements *= size
        end += (size - 1) * stride
    whole = step.graph.tensors[view.tensor]
    is_dense = view.offset == 0 and elements == end + 1 and whole.nbytes == elements * view.dtype.itemsize
    return is_dense and view.dtype in _DTYPES and whole.dtype == str(view.dtype).removeprefix("torch.")


def is_contiguous(view: View) -> bool:
    """Whether an image batch lies row by row, channel by channel."""
    _, channels, height, width = view.size
    return view.stride == (channels * height * width, height * width, width, 1)


def is_channels_last(view: View) -> bool:
    """Whether the channels of each pixel of an image batch lie side by side."""
    _, channels, height, width = view.size
    return view.stride == (channels * height * width, 1, channels * width, channels)


_Rule = Callable[[CapturedStep, Call], TensorId | None]
_SIGNS: Mapping[object, _Rule] = {aten.threshold_backward.default: _threshold_backward}
_SHAPES: Mapping[object, _Rule] = {aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward}
