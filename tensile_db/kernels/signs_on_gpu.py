"""Bits packed and unpacked on a GPU: by one kernel, or where Triton makes none by more of PyTorch's own.

Triton comes with PyTorch's builds for CUDA, and wants a C compiler when it first makes a kernel.  Its kernels
read and write each byte once, so that signs cost a gradient nothing: what is read once more to pack them, the
gradient reads less.

Source: ours.
"""

import logging
import time
from collections.abc import Iterator

import torch

from tensile_db.kernels.signs_on_cpu import pieces

log = logging.getLogger(__name__)

#: Of gradients, and of what is packed besides masks, that kernels are tried out for.
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: Elements that are unpacked at a time.  A multiple of 8.
_AT_A_TIME = 1 << 22
#: How long no trial is made after one for which the device had no memory: a full one stays so for a while.
_FULL_FOR_S = 60.0

#: Trial -> whether its kernels work; none of one that has yet to be made, or made again.
_known: dict[str, bool] = {}
#: Trial -> when it may be made again, by time.monotonic().
_again_at: dict[str, float] = {}


def pack(rows: torch.Tensor) -> torch.Tensor:
    """Return a bit for each element, 1 where not x <= 0, in whole bytes a row; rows: (rows, elements)."""
    if has_kernels_for(rows) or (rows.dtype is torch.bool and rows.is_cuda and _has_dropout_kernels()):
        from tensile_db.kernels import signs_triton

        return signs_triton.pack(rows)
    return pack_by_torch(rows)


def mask(grad: torch.Tensor, signs: torch.Tensor, out: torch.Tensor) -> None:
    """Write a gradient in rows where the bit is 1, else 0, to flat `out`, where `has_kernels_for` it."""
    from tensile_db.kernels import signs_triton

    signs_triton.mask(grad, signs, out)


def scaled_mask(grad: torch.Tensor, signs: torch.Tensor, out: torch.Tensor, scale: float) -> None:
    """Write a gradient in rows times the bit, times `scale`, to flat `out`.

    Where `has_dropout_kernels_for` it.
    """
    from tensile_db.kernels import signs_triton

    signs_triton.scaled_mask(grad, signs, out, scale)


def has_kernels_for(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is on a GPU for which Triton makes kernels, and of a dtype that these take."""
    return tensor.is_cuda and tensor.dtype in DTYPES and _has_kernels()


def has_dropout_kernels_for(grad: torch.Tensor) -> bool:
    """Tell the same of the kernels for dropout's gradients and masks."""
    return grad.is_cuda and grad.dtype in DTYPES and _has_dropout_kernels()


def _has_kernels() -> bool:
    """Tell whether Triton's kernels can be made here."""
    return _works("try_out")


def _has_dropout_kernels() -> bool:
    """Tell whether those for dropout give the bits of PyTorch's operator, too; tried by themselves."""
    return _has_kernels() and _works("try_out_dropout")


def _works(trial: str) -> bool:
    """Tell what comes of a trial, which is made once; or again, where the device had no memory for it.

    Either way gives the same bits, so that a job may change from one to the other.
    """
    if trial in _known:
        return _known[trial]
    # A trial waits for the device, which ends a capture with an error.
    if time.monotonic() < _again_at.get(trial, 0.0) or torch.cuda.is_current_stream_capturing():
        return False
    try:
        from tensile_db.kernels import signs_triton

        getattr(signs_triton, trial)(torch.device("cuda"), DTYPES)
    except Exception as error:  # noqa: BLE001 - whatever keeps Triton from it, PyTorch does it instead
        # Triton's errors have no number, as the driver's have, nor a class of their own, as PyTorch's.
        if "out of memory" in str(error):
            log.info(
                "no memory to try out Triton's kernels, PyTorch's own take their place for now: %s", error
            )
            _again_at[trial] = time.monotonic() + _FULL_FOR_S
        else:
            log.warning("Triton makes no kernels here, PyTorch's own take their place: %s", error)
            _known[trial] = False
        return False
    _known[trial] = True
    return True


def pack_by_torch(rows: torch.Tensor) -> torch.Tensor:
    """Return as `pack` does, by PyTorch's own operators."""
    count, elements = rows.shape
    signs = torch.zeros(count, -(-elements // 8), dtype=torch.uint8, device=rows.device)
    for some, columns in pieces(count, elements, _AT_A_TIME):
        above = torch.le(rows[some, columns], 0).logical_not_()
        packed = signs[some, columns.start // 8 : -(-columns.stop // 8)]
        filled = torch.zeros(*packed.shape, 8, dtype=torch.uint8, device=rows.device)
        filled.view(len(packed), -1)[:, : above.shape[1]] = above
        for bit in range(8):
            packed |= filled[:, :, bit] << (7 - bit)
    return signs


def unpacked(signs: torch.Tensor, elements: int) -> Iterator[torch.Tensor]:
    """Yield bits as uint8 of 0 and 1, flat, in order, some elements at a time; elements: of a row."""
    places = torch.arange(7, -1, -1, dtype=torch.uint8, device=signs.device)
    for some, columns in pieces(len(signs), elements, _AT_A_TIME):
        packed = signs[some, columns.start // 8 : -(-columns.stop // 8)]
        bits = ((packed[:, :, None] >> places) & 1).view(len(packed), -1)
        yield bits[:, : columns.stop - columns.start].reshape(-1)
