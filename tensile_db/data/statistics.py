"""Mean and deviation of features over the training rows."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

#: Of images, so many rows tell enough: their mean is known to 2 % of the deviation between images.
_SAMPLE_ROWS = 4096

#: Rows are looked at in blocks of this size.
_BLOCK_NBYTES = 16 * 2**20

#: Numbers that lie closer together than this are one number: their deviation would lose digits.
LEAST_SPREAD = 1e-290

#: Deviations below this, or below this share of the mean, are found anew from distances: sums of the numbers
#: themselves, and of small squares, have lost them.
_SMALL = 1e-12


class RowArray(Protocol):
    """An array of rows, in memory, mapped, or made when asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole: rows first."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]: ...


class Statistics(NamedTuple):
    """Of each channel or feature."""

    mean: tuple[float, ...]
    #: The standard deviation; 1 of constants.  Neither is finite where numbers are too far apart for float64.
    scale: tuple[float, ...]
    #: Whether all values are one.
    is_constant: tuple[bool, ...]


def statistics(features: RowArray, rows: npt.NDArray[np.int64]) -> Statistics:
    """Return mean and deviation over these rows, of which there is at least one.

    features: [rows, channels, height, width], of which a sample is taken, or [rows, features].
    """
    if len(features.shape) == 4 and len(rows) > _SAMPLE_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, _SAMPLE_ROWS).astype(np.int64)]
    if features.dtype == np.uint8:
        mean, variance, low, high = _of_counts(_counts(features, rows))
    else:
        # Infinite is what it then says.
        with np.errstate(over="ignore", invalid="ignore"):
            mean, variance, low, high = _of_numbers(features, rows)
    scale = np.sqrt(variance)
    with np.errstate(over="ignore"):
        is_constant = high - low < LEAST_SPREAD
    small = np.flatnonzero(~is_constant & (scale < _SMALL * np.maximum(1.0, np.abs(mean))))
    if len(small):
        mean[small], scale[small] = _of_distances(features, rows, small, low[small], high[small])
    # The mean of many equal numbers may be a little beside them.
    mean[is_constant] = low[is_constant]
    scale[is_constant] = 1.0
    return Statistics(tuple(mean.tolist()), tuple(scale.tolist()), tuple(is_constant.tolist()))


def _counts(features: RowArray, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how often each channel or feature has each of the 256 values, [channels, 256]: exact."""
    channels = features.shape[1]
    counts = np.zeros((channels, 256), np.int64)
    for block in _blocks(features, rows):
        for channel in range(channels):
            counts[channel] += np.bincount(block[:, channel].reshape(-1), minlength=256)
    return counts


#: Of each channel or feature: mean, variance, the least and the largest value.
_Moments = tuple[
    npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]
]


def _of_counts(counts: npt.NDArray[np.int64]) -> _Moments:
    values = np.arange(256.0)
    total = counts.sum(axis=1)
    mean = counts @ values / total
    variance = (counts * np.square(values - mean[:, None])).sum(axis=1) / total
    low, high = (counts > 0).argmax(axis=1), 255 - (counts[:, ::-1] > 0).argmax(axis=1)
    return mean, variance, low.astype(np.float64), high.astype(np.float64)


def _of_numbers(features: RowArray, rows: npt.NDArray[np.int64]) -> _Moments:
    # In two passes: the difference of two large sums would leave nothing of a small deviation.
    axes = _axes(features)
    count = len(rows) * int(np.prod(features.shape[2:]))
    total = np.zeros(features.shape[1])
    low, high = np.full(features.shape[1], np.inf), np.full(features.shape[1], -np.inf)
    for block in _blocks(features, rows):
        total += block.sum(axis=axes, dtype=np.float64)
        low = np.minimum(low, block.min(axis=axes))
        high = np.maximum(high, block.max(axis=axes))
    mean = total / count
    centre = mean.reshape(-1, *[1] * (len(features.shape) - 2))
    squares = np.zeros(features.shape[1])
    for block in _blocks(features, rows):
        squares += np.square(block - centre).sum(axis=axes)
    return mean, squares / count, low, high


def _of_distances(
    features: RowArray,
    rows: npt.NDArray[np.int64],
    which: npt.NDArray[np.int64],
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return mean and deviation of some channels or features, by how far they lie from the least value.

    which: their places; low, high: bounds of each, unequal.
    """
    axes, count = _axes(features), len(rows) * int(np.prod(features.shape[2:]))
    tail = [1] * (len(features.shape) - 2)
    # Of the largest distance: squares of very small ones would vanish.
    spread = high - low
    total, squares = np.zeros(len(which)), np.zeros(len(which))
    for block in _blocks(features, rows):
        total += ((block[:, which] - low.reshape(-1, *tail)) / spread.reshape(-1, *tail)).sum(axis=axes)
    centre = total / count
    for block in _blocks(features, rows):
        shares = (block[:, which] - low.reshape(-1, *tail)) / spread.reshape(-1, *tail)
        squares += np.square(shares - centre.reshape(-1, *tail)).sum(axis=axes)
    return low + centre * spread, spread * np.sqrt(squares / count)


def _axes(features: RowArray) -> tuple[int, ...]:
    return tuple(axis for axis in range(len(features.shape)) if axis != 1)


def _blocks(features: RowArray, rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
    # Eight bytes an element: what is computed with them is float64.
    step = max(1, _BLOCK_NBYTES // (8 * int(np.prod(features.shape[1:]))))
    for begin in range(0, len(rows), step):
        yield features[rows[begin : begin + step]]
