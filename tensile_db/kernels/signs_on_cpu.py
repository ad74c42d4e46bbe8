"""Bits packed and unpacked on the processor, by NumPy, some elements at a time.

Source: ours.
"""

from collections.abc import Iterator

import numpy as np
import torch

#: Elements at a time: few enough for the processor's caches.
_AT_A_TIME = 1 << 18


def pack(flat: torch.Tensor) -> torch.Tensor:
    """Return a bit for each element of a flat tensor, 1 where not x <= 0."""
    signs = torch.empty(-(-flat.numel() // 8), dtype=torch.uint8)
    packed = signs.numpy()
    for begin in range(0, flat.numel(), _AT_A_TIME):
        above = torch.le(flat[begin : begin + _AT_A_TIME], 0).logical_not_()
        packed[begin // 8 : (begin + _AT_A_TIME) // 8] = np.packbits(above.numpy())
    return signs


def unpacked(signs: torch.Tensor, elements: int) -> Iterator[torch.Tensor]:
    """Yield bits as uint8 of 0 and 1, in order, some elements at a time."""
    packed = signs.numpy()
    for begin in range(0, elements, _AT_A_TIME):
        part = packed[begin // 8 : (begin + _AT_A_TIME) // 8]
        yield torch.from_numpy(np.unpackbits(part, count=min(_AT_A_TIME, elements - begin)))
