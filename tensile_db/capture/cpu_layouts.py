"""Gives fake results the strides and the storages that the CPU's kernels give.

Fake kernels are written for all devices, and here and there lay their results out as the CPU's do not.  The
executor makes an op's arguments from the captured strides and accounts for the captured sizes, so that both
must be the real ones.

Source: for each rule the kernel's own file in aten/src/ATen.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensorMode

# PyTorch gives an operator's schema no public name.
# ruff: noqa: SLF001

aten = torch.ops.aten


_NONE: Mapping[str, Any] = {}


class CpuFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call] # PyTorch's
    """A fake mode whose results have the CPU kernels' strides.

    A mode of its own above the fake mode would not do: the tracer would see what it makes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Fake kernels call further operators in the same mode; only what the kernel itself returns counts.
        self._depth = 0

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NONE,
    ) -> Any:
        """Run an operator on fake tensors."""
        self._depth += 1
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
            if self._depth > 1:
                return result
            with self:
                return _corrected(func, args, kwargs, result)
        finally:
            self._depth -= 1


def _corrected(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    pointwise = torch.Tag.pointwise in func.tags and kwargs.get("memory_format") is None
    if pointwise and isinstance(result, torch.Tensor):
        return _pointwise(func, args, result)
    rule = _RULES.get(func)
    if rule is None:
        return result
    if isinstance(result, torch.Tensor):
        return rule(args, result)
    if result[0] is None:
        return result
    return rule(args, result[0]), *result[1:]


def _pointwise(func: OpOverload, args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """Apply TensorIterator's shortcut: same-shaped dense operands give a result in a plain memory format.

    native/TensorIterator.cpp, `compute_fast_setup_type`.  It matters where a dimension has size 1, whose
    stride the fake kernels copy from an operand.
    """
    expected = [argument for argument in func._schema.arguments if "Tensor" in str(argument.type)]
    operands = [value for value in args[: len(expected)] if isinstance(value, torch.Tensor)]
    # Where a number stands for a tensor, shapes differ and the shortcut is not taken.
    if (
        func._schema.is_mutable
        or func._overloadname == "Scalar"
        or len(operands) != len(expected)
        or any(operand.shape != result.shape for operand in operands)
    ):
        return result
    for memory_format in (torch.contiguous_format, torch.channels_last):
        if memory_format is torch.channels_last and result.dim() != 4:
            break
        if all(operand.is_contiguous(memory_format=memory_format) for operand in operands):
            return _laid_out(result, memory_format)
    return result


def _laid_out(result: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    right = torch.empty(result.shape, dtype=result.dtype, device=result.device, memory_format=memory_format)
    return result if right.stride() == result.stride() else right


def _contiguous(_args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/layer_norm.cpp: made with MemoryFormat::Contiguous, whatever the input is."""
    return _laid_out(result, torch.contiguous_format)


def _like_input(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/Normalization.cpp, `batch_norm_backward_cpu`: follows the input, not the gradient."""
    return _laid_out(result, suggest_memory_format(args[1]))


def _heads_inside(_args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/transformers/attention.cpp: made as batch x rows x heads x width, then transposed."""
    batch, heads, rows, width = result.shape
    made = torch.empty((batch, rows, heads, width), dtype=result.dtype, device=result.device)
    right = made.transpose(1, 2)
    return result if right.stride() == result.stride() else right


def _made_like_input(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/Loss.cpp `mse_loss`, native/Im2Col.cpp, native/Col2Im.cpp.

    They make a tensor of their input's size and shrink it to the result, which keeps the larger storage.
    """
    return _with_storage_of(result, max(args[0].numel(), result.numel()))


def _with_storage_of(result: torch.Tensor, count: int) -> torch.Tensor:
    storage = torch.empty((count,), dtype=result.dtype, device=result.device)
    return storage.as_strided(result.shape, result.stride())


#: Corrections of an operator's first result.
_RULES: Mapping[OpOverload, Callable[[Sequence[Any], torch.Tensor], torch.Tensor]] = {
    aten.native_batch_norm_backward.default: _like_input,
    aten.native_layer_norm.default: _contiguous,
    aten.native_layer_norm_backward.default: _contiguous,
    aten.mse_loss.default: _made_like_input,
    aten.im2col.default: _made_like_input,
    aten.col2im.default: _made_like_input,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _heads_inside,
}
