"""The strides that TensorIterator gives the result of an elementwise operator.

Source: aten/src/ATen/TensorIterator.cpp, `compute_fast_setup_type`, `reorder_dimensions`,
`allocate_or_resize_outputs`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch._ops import OpOverload

# PyTorch gives an operator's schema no public name.
# ruff: noqa: SLF001

aten = torch.ops.aten

#: Elementwise operators that carry no tag.
_UNTAGGED = frozenset(
    {
        aten.elu_backward.default,
        aten.hardsigmoid_backward.default,
        aten.hardswish.default,
        aten.hardswish_backward.default,
        aten.hardtanh_backward.default,
        aten.softplus_backward.default,
    }
)

#: Tagged, but made by other means than TensorIterator's.
_OTHERS = frozenset({aten.clone.default, aten.hardtanh.default, aten.where.self, aten.masked_fill.Scalar})


def follows_tensor_iterator(function: OpOverload) -> bool:
    """Tell whether the operator makes its result by a TensorIterator that sees its tensor arguments."""
    if function in _UNTAGGED:
        return True
    tagged = torch.Tag.pointwise in function.tags
    return tagged and not function._schema.is_mutable and function not in _OTHERS


def result_stride(function: OpOverload, args: Sequence[Any], result: torch.Tensor) -> tuple[int, ...]:
    """Return the result's strides; only its shape is looked at."""
    operands = [value for value in args if isinstance(value, torch.Tensor)]
    if function is aten.threshold_backward.default:
        # native/Activation.cpp gives the iterator its input before the gradient.
        operands.reverse()
    if all(operand.shape == result.shape for operand in operands) and not _has_number_as_tensor(
        function, args
    ):
        if all(operand.is_contiguous() for operand in operands):
            return _stride_in_order(result.shape, range(result.dim())[::-1])
        if result.dim() == 4 and all(
            operand.is_contiguous(memory_format=torch.channels_last) for operand in operands
        ):
            return _stride_in_order(result.shape, (1, 3, 2, 0))
        first = operands[0].stride()
        if all(operand.stride() == first and is_dense(operand) for operand in operands):
            return tuple(first)
    strides = [_broadcast_stride(operand, result.shape) for operand in operands]
    return _stride_in_order(result.shape, _order(result.shape, strides))


def is_dense(operand: torch.Tensor) -> bool:
    """Tell whether the elements fill the memory between the first and the last, each its own."""
    running = 1
    longer = [
        (stride, size) for stride, size in zip(operand.stride(), operand.shape, strict=True) if size != 1
    ]
    for stride, size in sorted(longer):
        if stride != running:
            return False
        running *= size
    return True


def _has_number_as_tensor(function: OpOverload, args: Sequence[Any]) -> bool:
    """Tell whether a number is among the operands, as a tensor without dimensions."""
    if function._overloadname in ("Scalar", "Scalar_mode") and function is not aten.lerp.Scalar:
        return True
    parameters = zip(function._schema.arguments, args, strict=False)
    return any("Tensor" in str(given.type) and isinstance(value, int | float) for given, value in parameters)


def _broadcast_stride(operand: torch.Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    missing = len(shape) - operand.dim()
    own = [
        0 if size == 1 and shape[missing + dim] != 1 else stride
        for dim, (size, stride) in enumerate(zip(operand.shape, operand.stride(), strict=True))
    ]
    return (*(0 for _ in range(missing)), *own)


def _order(shape: Sequence[int], strides: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the dimensions, the fastest running first: an insertion sort that stops at ambiguity."""
    order = list(range(len(shape)))[::-1]
    for index in range(1, len(order)):
        place = index
        for before in reversed(range(index)):
            comparison = _compare(shape, strides, order[before], order[place])
            if comparison > 0:
                order[before], order[place] = order[place], order[before]
                place = before
            elif comparison < 0:
                break
    return order


def _compare(shape: Sequence[int], strides: Sequence[tuple[int, ...]], one: int, other: int) -> int:
    for stride in strides:
        if stride[one] == 0 or stride[other] == 0:
            continue
        if stride[one] != stride[other]:
            return -1 if stride[one] < stride[other] else 1
        if shape[one] > shape[other]:
            return 1
    return 0


def _stride_in_order(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    stride = [0] * len(shape)
    running = 1
    for dim in order:
        stride[dim] = running
        running *= shape[dim]
    return tuple(stride)
