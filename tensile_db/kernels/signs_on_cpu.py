"""Bits packed and unpacked on the processor, by NumPy, some elements at a time.

Source: ours.
"""

from collections.abc import Iterator

import numpy as np
import torch

#: Elements at a time: few enough for the processor's caches.  A multiple of 8.
_AT_A_TIME = 1 << 18


def pack(rows: torch.Tensor) -> torch.Tensor:
    """Return a bit for each element, 1 where not x <= 0, in whole bytes a row; rows: (rows, elements)."""
    count, elements = rows.shape
    signs = torch.empty(count, -(-elements // 8), dtype=torch.uint8)
    packed = signs.numpy()
    for some, columns in pieces(count, elements, _AT_A_TIME):
        above = torch.le(rows[some, columns], 0).logical_not_()
        packed[some, columns.start // 8 : -(-columns.stop // 8)] = np.packbits(above.numpy(), axis=1)
    return signs


def unpacked(signs: torch.Tensor, elements: int) -> Iterator[torch.Tensor]:
    """Yield bits as uint8 of 0 and 1, flat, in order, some elements at a time; elements: of a row."""
    packed = signs.numpy()
    for some, columns in pieces(len(signs), elements, _AT_A_TIME):
        part = packed[some, columns.start // 8 : -(-columns.stop // 8)]
        bits = np.unpackbits(part, axis=1, count=columns.stop - columns.start)
        yield torch.from_numpy(bits).view(-1)


def pieces(count: int, elements: int, at_a_time: int) -> Iterator[tuple[slice, slice]]:
    """Yield parts of (rows, elements) in order: some rows, or from a multiple of 8 some elements of one.

    at_a_time: elements, a multiple of 8.
    """
    if elements > at_a_time:
        for row in range(count):
            for begin in range(0, elements, at_a_time):
                yield slice(row, row + 1), slice(begin, min(elements, begin + at_a_time))
        return
    together = at_a_time // max(1, elements)
    for row in range(0, count, together):
        yield slice(row, min(count, row + together)), slice(0, elements)
