"""Mean and deviation of features over the training rows."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

#: Of images, so many rows tell enough: their mean is known to 2 % of the deviation between images.
_SAMPLE_ROWS = 4096

#: Rows are looked at in blocks of this size.
_BLOCK_NBYTES = 16 * 2**20


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


def statistics(
    features: RowArray, rows: npt.NDArray[np.int64]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation over these rows, for each channel or feature; of constants 1 instead.

    They are not finite where numbers are too far apart for float64.
    features: [rows, channels, height, width], of which a sample is taken, or [rows, features].
    """
    if len(features.shape) == 4 and len(rows) > _SAMPLE_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, _SAMPLE_ROWS).astype(np.int64)]
    if features.dtype == np.uint8:
        mean, variance = _of_counts(_counts(features, rows))
    else:
        # Infinite is what it then says.
        with np.errstate(over="ignore", invalid="ignore"):
            mean, variance = _of_numbers(features, rows)
    scale = np.sqrt(variance)
    scale[scale < 1e-12 * np.maximum(1.0, np.abs(mean))] = 1.0
    return tuple(mean.tolist()), tuple(scale.tolist())


def _counts(features: RowArray, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return how often each channel or feature has each of the 256 values, [channels, 256]: exact."""
    channels = features.shape[1]
    counts = np.zeros((channels, 256), np.int64)
    for block in _blocks(features, rows):
        for channel in range(channels):
            counts[channel] += np.bincount(block[:, channel].reshape(-1), minlength=256)
    return counts


def _of_counts(
    counts: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    values = np.arange(256.0)
    total = counts.sum(axis=1)
    mean = counts @ values / total
    return mean, (counts * np.square(values - mean[:, None])).sum(axis=1) / total


def _of_numbers(
    features: RowArray, rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    # In two passes: the difference of two large sums would leave nothing of a small deviation.
    axes = tuple(axis for axis in range(len(features.shape)) if axis != 1)
    count = len(rows) * int(np.prod(features.shape[2:]))
    total = np.zeros(features.shape[1])
    for block in _blocks(features, rows):
        total += block.sum(axis=axes, dtype=np.float64)
    mean = total / count
    centre = mean.reshape(-1, *[1] * (len(features.shape) - 2))
    squares = np.zeros(features.shape[1])
    for block in _blocks(features, rows):
        squares += np.square(block - centre).sum(axis=axes)
    return mean, squares / count


def _blocks(features: RowArray, rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
    # Eight bytes an element: what is computed with them is float64.
    step = max(1, _BLOCK_NBYTES // (8 * int(np.prod(features.shape[1:]))))
    for begin in range(0, len(rows), step):
        yield features[rows[begin : begin + step]]
