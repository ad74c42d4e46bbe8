"""Triton's kernels for `signs_on_gpu.py`.

`TRITON_INTERPRET=1` runs them on the processor, in NumPy, which is how they are tested where there is no GPU.

Source: ours.
"""

from typing import Any

import torch
import triton
import triton.language as tl

#: Bytes of bits that a program packs, and elements that one masks.
_BYTES, _ELEMENTS = 256, 1024


@triton.jit  # type: ignore[untyped-decorator]
def _pack(x: Any, signs: Any, elements: int, row_nbytes: int, nbytes: int, block: tl.constexpr) -> None:
    byte = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    place = tl.arange(0, 8)
    column = (byte % row_nbytes)[:, None] * 8 + place[None, :]
    element = (byte // row_nbytes)[:, None] * elements + column
    inside = (byte < nbytes)[:, None] & (column < elements)
    value = tl.load(x + element, mask=inside, other=0)
    # A NaN is not at most zero.  Triton's interpreter compares nothing narrower than float32.
    bit = tl.where(value.to(tl.float32) <= 0, 0, 1)
    packed = tl.sum(bit << (7 - place)[None, :], axis=1)
    tl.store(signs + byte, packed.to(tl.uint8), mask=byte < nbytes)


@triton.jit  # type: ignore[untyped-decorator]
def _mask(
    grad: Any, signs: Any, out: Any, elements: int, row_nbytes: int, total: int, block: tl.constexpr
) -> None:
    element = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = element < total
    value = tl.load(grad + element, mask=inside)
    column = element % elements
    byte = element // elements * row_nbytes + column // 8
    packed = tl.load(signs + byte, mask=inside, other=0).to(tl.int32)
    bit = (packed >> (7 - column % 8).to(tl.int32)) & 1
    tl.store(out + element, tl.where(bit != 0, value, 0.0), mask=inside)


def pack(rows: torch.Tensor) -> torch.Tensor:
    """Return a bit for each element, in whole bytes a row; rows: (rows, elements), contiguous."""
    count, elements = rows.shape
    signs = torch.empty(count, -(-elements // 8), dtype=torch.uint8, device=rows.device)
    if signs.numel():
        grid = (triton.cdiv(signs.numel(), _BYTES),)
        _pack[grid](rows, signs, elements, signs.shape[1], signs.numel(), block=_BYTES)
    return signs


def mask(grad: torch.Tensor, signs: torch.Tensor, out: torch.Tensor) -> None:
    """Write a gradient where the bit is 1, else 0; grad: (rows, elements), signs: (rows, bytes)."""
    if grad.numel():
        grid = (triton.cdiv(grad.numel(), _ELEMENTS),)
        _mask[grid](grad, signs, out, grad.shape[1], signs.shape[1], grad.numel(), block=_ELEMENTS)


def try_out(device: torch.device) -> None:
    """Make and run both kernels once, in each dtype.  Raises whatever keeps them from it."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.tensor([[1.0, -1.0, 0.0, float("nan")] * 5] * 2, dtype=dtype, device=device)
        out = torch.empty_like(x)
        mask(torch.ones_like(x), pack(x), out)
        if out.tolist() != [[1.0, 0.0, 0.0, 1.0] * 5] * 2:
            raise RuntimeError(f"its kernels compute wrong results in {dtype}")
