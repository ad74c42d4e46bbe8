"""`signs.py` on a GPU: one kernel each, or where Triton cannot make them some more of PyTorch's own.

Triton comes with PyTorch's builds for CUDA, and wants a C compiler when it first makes a kernel.  Each kernel
reads and writes each byte once, so that signs cost a rectifier's gradient nothing: what is read once more to
pack them, the gradient reads less.

Source: ours.
"""

import functools
import logging

import torch

log = logging.getLogger(__name__)

#: Elements that PyTorch's own operators unpack at a time.
_AT_A_TIME = 1 << 22


def pack_signs(x: torch.Tensor) -> torch.Tensor:
    """Return as `signs.pack_signs` does."""
    flat = x.as_strided((x.numel(),), (1,))
    if has_kernels():
        from tensile_db.kernels import signs_triton

        return signs_triton.pack_signs(flat)
    return torch_pack_signs(flat)


def threshold_backward_of_signs(grad_output: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """Return as `signs.threshold_backward_of_signs` does."""
    made = torch.empty_like(grad_output)
    grad, out = (each.as_strided((each.numel(),), (1,)) for each in (grad_output, made))
    if has_kernels():
        from tensile_db.kernels import signs_triton

        signs_triton.threshold_backward_of_signs(grad, signs, out)
    else:
        torch_threshold_backward_of_signs(grad, signs, out)
    return made


@functools.cache
def has_kernels() -> bool:
    """Tell whether Triton's kernels can be made here; tried once."""
    try:
        from tensile_db.kernels import signs_triton

        signs_triton.try_out(torch.device("cuda"))
    except Exception as error:  # noqa: BLE001 - whatever keeps Triton from it, PyTorch does it instead
        log.warning("Triton makes no kernels here, PyTorch's own take their place: %s", error)
        return False
    return True


def torch_pack_signs(flat: torch.Tensor) -> torch.Tensor:
    """Return the bits of a flat tensor's elements, by PyTorch's own operators."""
    signs = torch.empty(-(-flat.numel() // 8), dtype=torch.uint8, device=flat.device)
    for begin in range(0, flat.numel(), _AT_A_TIME):
        part = flat[begin : begin + _AT_A_TIME]
        above = torch.zeros(-(-part.numel() // 8), 8, dtype=torch.uint8, device=flat.device)
        above.view(-1)[: part.numel()] = torch.le(part, 0).logical_not_()
        packed = signs[begin // 8 : (begin + _AT_A_TIME) // 8].zero_()
        for bit in range(8):
            packed |= above[:, bit] << (7 - bit)
    return signs


def torch_threshold_backward_of_signs(grad: torch.Tensor, signs: torch.Tensor, out: torch.Tensor) -> None:
    """Write a flat gradient where the bit is 1, else 0, by PyTorch's own operators."""
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=grad.device)
    for begin in range(0, grad.numel(), _AT_A_TIME):
        part = grad[begin : begin + _AT_A_TIME]
        packed = signs[begin // 8 : (begin + _AT_A_TIME) // 8]
        bits = ((packed[:, None] >> places) & 1).view(-1)[: part.numel()]
        torch.ops.aten.threshold_backward.grad_input(
            part, bits.to(part.dtype), 0, grad_input=out[begin : begin + _AT_A_TIME]
        )
