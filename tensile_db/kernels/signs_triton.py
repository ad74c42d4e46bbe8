"""Triton's kernels for `signs_on_gpu.py`.

Where there is no GPU, `TRITON_INTERPRET=1` runs them on the processor, in NumPy, and Triton's compiler makes
them for a named one; both are tested.  The compiler, unlike the interpreter, wants every name that a kernel
mentions, annotations included, to be Triton's own or built in.  An `int` among these would mean 32 bits, to
which Triton would cut a count of elements.

Source: ours.
"""

from collections.abc import Sequence
from itertools import product

import torch
import triton
import triton.language as tl

#: Bytes of bits that a program packs, and elements that one masks.
_BYTES, _ELEMENTS = 256, 1024


@triton.jit  # type: ignore[untyped-decorator]
def _pack(
    x: tl.tensor,
    signs: tl.tensor,
    elements: tl.tensor,
    row_nbytes: tl.tensor,
    nbytes: tl.tensor,
    flat: tl.constexpr,
    block: tl.constexpr,
) -> None:
    byte = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    place = tl.arange(0, 8)
    inside = (byte < nbytes)[:, None]
    if flat:
        element = byte[:, None] * 8 + place[None, :]
    else:
        column = (byte % row_nbytes)[:, None] * 8 + place[None, :]
        element = (byte // row_nbytes)[:, None] * elements + column
        inside = inside & (column < elements)
    value = tl.load(x + element, mask=inside, other=0)
    # A NaN is not at most zero.  Triton's interpreter compares nothing narrower than float32.
    bit = tl.where(value.to(tl.float32) <= 0, 0, 1)
    packed = tl.sum(bit << (7 - place)[None, :], axis=1)
    tl.store(signs + byte, packed.to(tl.uint8), mask=byte < nbytes)


@triton.jit  # type: ignore[untyped-decorator]
def _mask(
    grad: tl.tensor,
    signs: tl.tensor,
    out: tl.tensor,
    elements: tl.tensor,
    row_nbytes: tl.tensor,
    total: tl.tensor,
    scale: float,
    scaled: tl.constexpr,
    flat: tl.constexpr,
    block: tl.constexpr,
) -> None:
    element = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = element < total
    value = tl.load(grad + element, mask=inside)
    if flat:
        column = element
        byte = element // 8
    else:
        column = element % elements
        byte = element // elements * row_nbytes + column // 8
    packed = tl.load(signs + byte, mask=inside, other=0).to(tl.int32)
    bit = (packed >> (7 - column % 8).to(tl.int32)) & 1
    if scaled:
        # In this order, and in float32, as native_dropout_backward's kernel does.
        tl.store(out + element, bit.to(tl.float32) * value.to(tl.float32) * scale, mask=inside)
    else:
        tl.store(out + element, tl.where(bit != 0, value, 0.0), mask=inside)


def pack(rows: torch.Tensor) -> torch.Tensor:
    """Return a bit for each element, in whole bytes a row; rows: (rows, elements), contiguous."""
    count, elements = rows.shape
    if rows.dtype is torch.bool:
        rows = rows.view(torch.uint8)
    signs = torch.empty(count, -(-elements // 8), dtype=torch.uint8, device=rows.device)
    if signs.numel():
        grid = (triton.cdiv(signs.numel(), _BYTES),)
        flat = _is_flat(elements)
        _pack[grid](rows, signs, elements, signs.shape[1], signs.numel(), flat=flat, block=_BYTES)
    return signs


def mask(grad: torch.Tensor, signs: torch.Tensor, out: torch.Tensor) -> None:
    """Write a gradient where the bit is 1, else 0; grad: (rows, elements), signs: (rows, bytes)."""
    _masked(grad, signs, out, 1.0, scaled=False)


def scaled_mask(grad: torch.Tensor, signs: torch.Tensor, out: torch.Tensor, scale: float) -> None:
    """Write a gradient times the bit, times `scale`; grad: (rows, elements), signs: (rows, bytes)."""
    _masked(grad, signs, out, scale, scaled=True)


def _masked(
    grad: torch.Tensor, signs: torch.Tensor, out: torch.Tensor, scale: float, *, scaled: bool
) -> None:
    if grad.numel():
        grid = (triton.cdiv(grad.numel(), _ELEMENTS),)
        elements = grad.shape[1]
        _mask[grid](
            *(grad, signs, out, elements, signs.shape[1], grad.numel(), scale),
            scaled=scaled,
            flat=_is_flat(elements),
            block=_ELEMENTS,
        )


def try_out(device: torch.device, dtypes: Sequence[torch.dtype]) -> None:
    """Make and run the kernels once, in each dtype.  Raises whatever keeps them from it."""
    # Rows of 20 elements, and of 24.
    for dtype, times in product(dtypes, (5, 6)):
        x = torch.tensor([[1.0, -1.0, 0.0, float("nan")] * times] * 2, dtype=dtype, device=device)
        out = torch.empty_like(x)
        mask(torch.ones_like(x), pack(x), out)
        if out.tolist() != [[1.0, 0.0, 0.0, 1.0] * times] * 2:
            raise RuntimeError(f"its kernels compute wrong results in {dtype}")


def try_out_dropout(device: torch.device, dtypes: Sequence[torch.dtype]) -> None:
    """Compare a mask's bits and dropout's gradients of them with PyTorch's own; raises as `try_out` does."""
    for dtype, times in product(dtypes, (5, 6)):
        # What is rounded, zeros of both signs, what has no fraction of full length, NaN of infinity.
        grad = torch.tensor([[1.1, -3.3, -7.7e-39, float("inf")] * times] * 2, device=device).to(dtype)
        kept = torch.tensor([[True, False, False, False] * times, [False, True, True, True] * times])
        got, kept = torch.empty_like(grad), kept.to(device)
        scaled_mask(grad, pack(kept), got, 1 / 0.7)
        want = torch.ops.aten.native_dropout_backward(grad, kept, 1 / 0.7)
        if not torch.equal(_as_bits(got), _as_bits(want)):
            raise RuntimeError(f"its kernels compute other gradients of dropout in {dtype}")


def _as_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose elements are equal where the bits are, any NaN's like any other's."""
    whole = torch.int32 if tensor.dtype is torch.float32 else torch.int16
    return tensor.nan_to_num(nan=1234.0, posinf=float("inf"), neginf=float("-inf")).view(whole)


def _is_flat(elements: int) -> bool:
    """Whether rows follow each other without unused bits, so that no division need find an element's row."""
    return elements % 8 == 0
