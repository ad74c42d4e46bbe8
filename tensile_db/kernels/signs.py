"""Which elements are above zero, eight a byte, and gradients that take no more than that.

    pack_signs(x)                               a bit for each element of x, 1 where not x <= 0
    threshold_backward_of_signs(grad, signs)    threshold_backward(grad, x, 0), given pack_signs(x)
    max_pool2d_backward_of_shape(grad, ...)     max_pool2d_with_indices_backward, given x's height and width

The results are those of PyTorch's own operators, bit for bit; a NaN counts as above zero, as theirs do.
Elements are taken in the order in which they lie in memory: tensors are dense, without gaps.  The first
element has the highest bit of the first byte, as NumPy packs them.

On the processor NumPy packs and unpacks, some elements at a time, so that little more than the results is
held.  On a GPU `signs_on_gpu.py` does.

Source: Jain et al., Gist (ISCA 2018), section 3, "Binarize".
"""

import numpy as np
import torch
from torch.library import define, impl

from tensile_db.kernels import signs_on_gpu

#: Elements that are unpacked at a time on the processor: few enough for its caches.
_AT_A_TIME = 1 << 18

define("tensile::pack_signs", "(Tensor x) -> Tensor")
define("tensile::threshold_backward_of_signs", "(Tensor grad_output, Tensor signs) -> Tensor")
define(
    "tensile::max_pool2d_backward_of_shape",
    "(Tensor grad_output, int[2] image_size, bool channels_last, int[2] kernel_size, int[2] stride,"
    " int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices) -> Tensor",
)


def pack_signs(x: torch.Tensor) -> torch.Tensor:
    """Return a bit for each element, uint8 of shape (elements / 8, rounded up); x: dense, of any shape."""
    flat = in_memory_order(x)
    signs = torch.empty(-(-flat.numel() // 8), dtype=torch.uint8)
    packed = signs.numpy()
    for begin in range(0, flat.numel(), _AT_A_TIME):
        above = torch.le(flat[begin : begin + _AT_A_TIME], 0).logical_not_()
        packed[begin // 8 : (begin + _AT_A_TIME) // 8] = np.packbits(above.numpy())
    return signs


def threshold_backward_of_signs(grad_output: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """Return grad_output where the bit is 1, else 0, laid out alike; grad_output: dense."""
    made = torch.empty_like(grad_output)
    grad, out = in_memory_order(grad_output), in_memory_order(made)
    packed = signs.numpy()
    for begin in range(0, grad.numel(), _AT_A_TIME):
        part = grad[begin : begin + _AT_A_TIME]
        bits = np.unpackbits(packed[begin // 8 : (begin + _AT_A_TIME) // 8], count=part.numel())
        torch.ops.aten.threshold_backward.grad_input(
            part, torch.from_numpy(bits).to(part.dtype), 0, grad_input=out[begin : begin + _AT_A_TIME]
        )
    return made


def max_pool2d_backward_of_shape(
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
    """Return the gradient of what was pooled, shape (*grad_output.shape[:-2], *image_size).

    PyTorch's operator takes of the images that were pooled their shape alone, so it is shown its own result.
    """
    made = torch.empty(
        (*grad_output.shape[:-2], *image_size),
        dtype=grad_output.dtype,
        device=grad_output.device,
        memory_format=torch.channels_last if channels_last else torch.contiguous_format,
    )
    torch.ops.aten.max_pool2d_with_indices_backward.grad_input(
        grad_output, made, kernel_size, stride, padding, dilation, ceil_mode, indices, grad_input=made
    )
    return made


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return all elements of a dense tensor, flat, as they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


impl("tensile::pack_signs", "CPU", pack_signs)
impl("tensile::pack_signs", "CUDA", signs_on_gpu.pack_signs)
impl("tensile::threshold_backward_of_signs", "CPU", threshold_backward_of_signs)
impl("tensile::threshold_backward_of_signs", "CUDA", signs_on_gpu.threshold_backward_of_signs)
impl("tensile::max_pool2d_backward_of_shape", "CompositeExplicitAutograd", max_pool2d_backward_of_shape)

PACK_SIGNS = torch.ops.tensile.pack_signs.default
THRESHOLD_BACKWARD_OF_SIGNS = torch.ops.tensile.threshold_backward_of_signs.default
MAX_POOL2D_BACKWARD_OF_SHAPE = torch.ops.tensile.max_pool2d_backward_of_shape.default
