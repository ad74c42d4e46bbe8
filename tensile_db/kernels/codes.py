"""Codes of tensors in fewer bytes, and ops that take codes in place of tensors.

    pack_signs(x)                                      a bit for each element of x, 1 where not x <= 0
    pack_uint16(x)                                     whole numbers below 65,536 in two bytes each
    threshold_backward_of_signs(grad, signs, order)    threshold_backward(grad, x, 0)
    mul_of_signs(other, signs, order, high)            other * x, where x has `high` and zeros
    native_dropout_backward_of_signs(grad, signs, order, s)    native_dropout_backward(grad, mask, s)
    max_pool2d_backward_of_codes(grad, ..., indices)   max_pool2d_with_indices_backward, told the images'
                                                       shape alone; indices may be in two bytes each

The results are those of PyTorch's own operators, bit for bit; a NaN counts as above zero, as theirs do.
Codes have their elements in the order in which the tensors' lie in memory: these are dense, without gaps.
Signs come in rows of whole bytes; the first element of a row has the highest bit of its first byte, as NumPy
packs them, and the last byte is filled up with zeros.  `order` has the dimensions of x, and of the result, as
they lie in memory, the outermost first; the other operand may lie otherwise.

All but packing is PyTorch's own operators on what is unpacked, some elements at a time, so that little more
than the results is held; but where Triton makes kernels, the gradients of a rectifier and of native_dropout
are one each (`signs_on_gpu.py`).

Source: Jain et al., Gist (ISCA 2018), section 3, "Binarize".
"""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod

import torch
from torch.library import define, impl

from tensile_db.kernels import signs_on_cpu, signs_on_gpu

aten = torch.ops.aten

#: Bytes of indices that are unpacked at a time, whole images.
_INDICES_NBYTES = 8 << 20

define("tensile::pack_signs", "(Tensor x) -> Tensor")
define("tensile::pack_uint16", "(Tensor x) -> Tensor")
define("tensile::threshold_backward_of_signs", "(Tensor grad_output, Tensor signs, int[] order) -> Tensor")
define("tensile::mul_of_signs", "(Tensor grad_output, Tensor signs, int[] order, float high) -> Tensor")
define(
    "tensile::native_dropout_backward_of_signs",
    "(Tensor grad_output, Tensor signs, int[] order, float scale) -> Tensor",
)
define(
    "tensile::max_pool2d_backward_of_codes",
    "(Tensor grad_output, int[2] image_size, bool channels_last, int[2] kernel_size, int[2] stride,"
    " int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor",
)


def pack_signs(x: torch.Tensor) -> torch.Tensor:
    """Return a bit for each element, uint8, of x's shape but for the last size: an eighth of it, rounded up.

    x: contiguous.
    """
    rows = _in_rows(x)
    signs = signs_on_gpu.pack(rows) if x.is_cuda else signs_on_cpu.pack(rows)
    return signs.view(*x.shape[:-1], -(-x.shape[-1] // 8))


def pack_uint16(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in two bytes each, uint16; x: within 0 and 65,535."""
    return x.to(torch.uint16)


def threshold_backward_of_signs(
    grad_output: torch.Tensor, signs: torch.Tensor, order: list[int]
) -> torch.Tensor:
    """Return grad_output where the bit is 1, else 0."""
    if grad_output.numel() and signs_on_gpu.has_kernels_for(grad_output):
        return _by_kernel(grad_output, signs, order, signs_on_gpu.mask)

    def work(grad: torch.Tensor, bits: torch.Tensor, out: torch.Tensor) -> None:
        aten.threshold_backward.grad_input(grad, bits.to(grad.dtype), 0, grad_input=out)

    return _elementwise(grad_output, signs, order, work)


def mul_of_signs(
    grad_output: torch.Tensor, signs: torch.Tensor, order: list[int], high: float
) -> torch.Tensor:
    """Return grad_output times `high` where the bit is 1, else times zero."""

    def work(grad: torch.Tensor, bits: torch.Tensor, out: torch.Tensor) -> None:
        torch.mul(grad, bits.to(grad.dtype).mul_(high), out=out)

    return _elementwise(grad_output, signs, order, work)


def native_dropout_backward_of_signs(
    grad_output: torch.Tensor, signs: torch.Tensor, order: list[int], scale: float
) -> torch.Tensor:
    """Return native_dropout_backward of a mask's bits."""
    if grad_output.numel() and signs_on_gpu.has_dropout_kernels_for(grad_output):
        return _by_kernel(grad_output, signs, order, partial(signs_on_gpu.scaled_mask, scale=scale))

    def work(grad: torch.Tensor, bits: torch.Tensor, out: torch.Tensor) -> None:
        aten.native_dropout_backward.out(grad, bits.view(torch.bool), scale, out=out)

    return _elementwise(grad_output, signs, order, work)


def max_pool2d_backward_of_codes(
    grad_output: torch.Tensor,
    image_size: list[int],
    channels_last: bool,
    kernel_size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil_mode: bool,
    indices: torch.Tensor,
) -> torch.Tensor:
    """Return the gradient of the images that were pooled, shape (*grad_output.shape[:-2], *image_size).

    indices: of grad_output's shape, int64 or their uint16 code.  PyTorch's operator takes of the images their
    shape alone, so it is shown its own result.
    """
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    made = torch.empty(
        (*grad_output.shape[:2], *image_size),
        dtype=grad_output.dtype,
        device=grad_output.device,
        memory_format=memory_format,
    )
    rest = (kernel_size, stride, padding, dilation, ceil_mode)
    at_a_time = len(made)
    if indices.dtype is torch.uint16:
        at_a_time = max(1, _INDICES_NBYTES // (8 * prod(indices.shape[1:])))
    for begin in range(0, len(made), at_a_time):
        images = slice(begin, begin + at_a_time)
        aten.max_pool2d_with_indices_backward.grad_input(
            grad_output[images],
            made[images],
            *rest,
            indices[images].to(torch.int64),
            grad_input=made[images],
        )
    return made


def _by_kernel(
    grad_output: torch.Tensor,
    signs: torch.Tensor,
    order: list[int],
    kernel: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
) -> torch.Tensor:
    """Return what a kernel of `signs_on_gpu` makes of a gradient and signs, both in rows, at once."""
    made, grad = _laid_out(grad_output, order)
    rows = _rows_of_signs(signs)
    kernel(grad.view(len(rows), -1), rows, _in_memory_order(made))
    return made


def _elementwise(
    grad_output: torch.Tensor,
    signs: torch.Tensor,
    order: list[int],
    work: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None],
) -> torch.Tensor:
    """Return what `work` makes of a gradient and bits, given as uint8 of 0 and 1, some elements at a time."""
    made, grad = _laid_out(grad_output, order)
    out = _in_memory_order(made)
    unpacked: Iterator[torch.Tensor]
    rows = _rows_of_signs(signs)
    if rows.numel() and grad.numel() // len(rows) % 8 == 0:
        rows = rows.view(1, -1)
    elements = grad.numel() // max(1, len(rows))
    unpacked = (signs_on_gpu if made.is_cuda else signs_on_cpu).unpacked(rows, elements)
    begin = 0
    for bits in unpacked:
        part = slice(begin, begin + len(bits))
        work(grad[part], bits, out[part])
        begin += len(bits)
    return made


def _laid_out(grad_output: torch.Tensor, order: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a tensor for the result, its dimensions in this order in memory, and a gradient's elements so.

    These are copied to the result first where they lie otherwise, e.g. in a part of another tensor.
    """
    if not order:
        return torch.empty_like(grad_output), grad_output.reshape(1)
    made = torch.empty(
        [grad_output.shape[dim] for dim in order], dtype=grad_output.dtype, device=grad_output.device
    ).permute([order.index(dim) for dim in range(len(order))])
    sizes = zip(grad_output.shape, grad_output.stride(), made.stride(), strict=True)
    if all(size == 1 or stride == want for size, stride, want in sizes):
        return made, _in_memory_order(grad_output)
    return made, _in_memory_order(made.copy_(grad_output))


def _in_rows(x: torch.Tensor) -> torch.Tensor:
    """Return a contiguous tensor's rows, (rows, elements); a single one where no row ends within a byte."""
    return x.view(1, -1) if x.shape[-1] % 8 == 0 else x.view(-1, x.shape[-1])


def _rows_of_signs(signs: torch.Tensor) -> torch.Tensor:
    """Return signs as (rows, bytes); a part of them may have gaps between its rows."""
    return signs.reshape(-1, signs.shape[-1]) if signs.numel() else signs.view(0, 1)


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of a dense tensor, flat, as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


for _function in (
    pack_signs,
    pack_uint16,
    threshold_backward_of_signs,
    mul_of_signs,
    native_dropout_backward_of_signs,
    max_pool2d_backward_of_codes,
):
    impl(f"tensile::{_function.__name__}", "CompositeExplicitAutograd", _function)

PACK_SIGNS = torch.ops.tensile.pack_signs.default
PACK_UINT16 = torch.ops.tensile.pack_uint16.default
THRESHOLD_BACKWARD_OF_SIGNS = torch.ops.tensile.threshold_backward_of_signs.default
MUL_OF_SIGNS = torch.ops.tensile.mul_of_signs.default
NATIVE_DROPOUT_BACKWARD_OF_SIGNS = torch.ops.tensile.native_dropout_backward_of_signs.default
MAX_POOL2D_BACKWARD_OF_CODES = torch.ops.tensile.max_pool2d_backward_of_codes.default
