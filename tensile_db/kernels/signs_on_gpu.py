"""Bits packed and unpacked on a GPU: by one kernel, or where Triton makes none by more of PyTorch's own.

Triton comes with PyTorch's builds for CUDA, and wants a C compiler when it first makes a kernel.  Its kernels
read and write each byte once, so that signs cost a rectifier's gradient nothing: what is read once more to
pack them, the gradient reads less.

Source: ours.
"""

import functools
import logging
from collections.abc import Iterator

import torch

log = logging.getLogger(__name__)

#: Elements that are unpacked at a time.
_AT_A_TIME = 1 << 22


def pack(flat: torch.Tensor) -> torch.Tensor:
    """Return a bit for each element of a flat tensor, 1 where not x <= 0."""
    if has_kernels_for(flat):
        from tensile_db.kernels import signs_triton

        return signs_triton.pack(flat)
    return pack_by_torch(flat)


def mask(grad: torch.Tensor, signs: torch.Tensor, out: torch.Tensor) -> None:
    """Write a flat gradient where the bit is 1, else 0, where `has_kernels_for` it."""
    from tensile_db.kernels import signs_triton

    signs_triton.mask(grad, signs, out)


def has_kernels_for(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is on a GPU for which Triton makes kernels."""
    return tensor.is_cuda and tensor.dtype is not torch.bool and _has_kernels()


@functools.cache
def _has_kernels() -> bool:
    """Tell whether Triton's kernels can be made here; tried once."""
    try:
        from tensile_db.kernels import signs_triton

        signs_triton.try_out(torch.device("cuda"))
    except Exception as error:  # noqa: BLE001 - whatever keeps Triton from it, PyTorch does it instead
        log.warning("Triton makes no kernels here, PyTorch's own take their place: %s", error)
        return False
    return True


def pack_by_torch(flat: torch.Tensor) -> torch.Tensor:
    """Return a bit for each element of a flat tensor, by PyTorch's own operators."""
    signs = torch.empty(-(-flat.numel() // 8), dtype=torch.uint8, device=flat.device)
    for begin in range(0, flat.numel(), _AT_A_TIME):
        part = flat[begin : begin + _AT_A_TIME]
        above = torch.zeros(-(-part.numel() // 8), 8, dtype=torch.uint8, device=flat.device)
        above.view(-1)[: part.numel()] = torch.le(part, 0).logical_not_()
        packed = signs[begin // 8 : (begin + _AT_A_TIME) // 8].zero_()
        for bit in range(8):
            packed |= above[:, bit] << (7 - bit)
    return signs


def unpacked(signs: torch.Tensor, elements: int) -> Iterator[torch.Tensor]:
    """Yield bits as uint8 of 0 and 1, in order, some elements at a time."""
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=signs.device)
    for begin in range(0, elements, _AT_A_TIME):
        packed = signs[begin // 8 : (begin + _AT_A_TIME) // 8]
        yield ((packed[:, None] >> places) & 1).view(-1)[: min(_AT_A_TIME, elements - begin)]
