"""From columns as read to an array of all rows' features; batches are cut from it.

The array keeps the source's own units and channels (uint8 images, float32 or float64 else), so that it is
small, and a batch is made float32, normalised and spread over the network's channels when it is asked for,
or, where it is bytes, on the device (capture/pixels.py).
It is made once, into a file; where the disk has no room for it, or columns have categories, whose features
take far more than their codes, rows are made anew whenever they are needed.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data import images
from tensile_db.data.column_encodings import Categories
from tensile_db.data.columns import EXACT_IN_FLOAT32, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.encoded_rows import encode_rows
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.layout import Layout, RowName, of_row, require_finite
from tensile_db.data.statistics import RowArray

#: Rows made together, and then written.
_BLOCK_ROWS = 256
#: Pillow lets go of the interpreter's lock while it decodes.
_THREADS = min(4, os.cpu_count() or 1)

#: Of the disk's free space, what one job's features may take: others have jobs, too.
_SHARE_OF_DISK = 0.5

#: Below it float32 has fewer digits.
_LEAST_FLOAT32 = float(np.finfo(np.float32).tiny)


#: What is done to features in the source's units; it keeps their shape and dtype.
Change = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def unchanged(found: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the features as they are."""
    return found


def prepare(
    layout: Layout,
    values: Sequence[Values],
    *,
    size: tuple[int, int] | None,
    path: Path,
    row_name: RowName,
    channels: int | None = None,
    max_nbytes: int | None = None,
    keeps: bool = False,
    progress: Callable[[int], None] = lambda _: None,
) -> RowArray:
    """Return all rows' features, [rows, channels, height, width] or [rows, features].

    size: (height, width) that images are resized to; None for vectors.
    channels: that the network takes; colours become grey where it takes but one.
    path: of the file to make, in the place of one that may be there.
    max_nbytes: of that file; None: half of what the disk has free.  Where they take more, rows are made
    when they are asked for.
    keeps: take the file that is there, where it has the size: its name says what it was made of.
    progress: told the rows made; may raise to stop.
    Raises UndecodableImage, RaggedArray, BadData for numbers that are not finite, all naming the row.
    """
    rows = rows_of(layout, values, size, channels, row_name)
    if any(isinstance(encoding, Categories) for encoding in layout.encodings):
        return rows
    nbytes = int(np.prod(rows.shape)) * rows.dtype.itemsize
    if keeps and nbytes and path.exists() and path.stat().st_size == nbytes:
        return np.memmap(path, rows.dtype, "r", shape=rows.shape)
    if max_nbytes is None:
        max_nbytes = share_of_disk_nbytes(path.parent)
    if nbytes > max_nbytes:
        return rows
    return _written(rows, nbytes, path, progress)


def share_of_disk_nbytes(folder: Path) -> int:
    """Return how many bytes of what the folder's disk has free one file of features may take."""
    return int(_SHARE_OF_DISK * shutil.disk_usage(folder).free)


def rows_of(
    layout: Layout,
    values: Sequence[Values],
    size: tuple[int, int] | None,
    channels: int | None,
    row_name: RowName,
) -> RowArray:
    """Return all rows' features as `prepare` does, made when they are asked for, which raises the same."""
    if layout.encodings:
        return encode_rows(layout.columns, values, layout.encodings, row_name)
    if layout.kind == "vector":
        numbers = [column for column in values if not isinstance(column, Variable)]
        assert len(numbers) == len(values), "vectors are made of numbers"
        return _Vectors(layout, numbers, row_name)
    assert size is not None, "images are resized"
    # Grey is spread over the network's channels batch by batch: until then it takes a third.
    stored = min(layout.shape[2], layout.shape[2] if channels is None else channels)
    return _Images(layout, values[0], size, stored, row_name)


def batch(
    features: RowArray,
    rows: npt.NDArray[np.int64],
    spec: FeatureSpec,
    row_name: RowName | None = None,
    change: Change = unchanged,
) -> npt.NDArray[np.float32]:
    """Return the features of some rows as the network takes them, float32 [rows, *spec.input_shape].

    row_name: of rows that the statistics are not of, whose numbers may be so far from these that float32 has
    no room for them: raises BadData for such a one.
    """
    made = normalised(change(features[rows]), spec)
    if row_name is not None:
        require_finite(made, rows, row_name, spec.feature_columns)
    return made


def normalised(found: npt.NDArray[Any], spec: FeatureSpec) -> npt.NDArray[np.float32]:
    """Return rows in the source's units and channels as the network takes them, as `batch` does."""
    # Large numbers with small differences must not be rounded before their mean is taken off.
    # Deviations below float32's least normal number would lose digits.
    is_small = min(spec.scale, default=1.0) < _LEAST_FLOAT32
    exact = np.dtype(np.float64 if found.dtype == np.float64 or is_small else np.float32)
    tail = [1] * (found.ndim - 2)
    made: npt.NDArray[np.floating] = found.astype(exact)
    # Rows of no training may be far from its statistics; who has such rows looks at what comes of them.
    with np.errstate(over="ignore"):
        made -= np.asarray(spec.mean, exact).reshape(-1, *tail)
        made /= np.asarray(spec.scale, exact).reshape(-1, *tail)
        if spec.kind == "image" and made.shape[1] != spec.channels:
            made = np.repeat(made, spec.channels, axis=1)
        return np.ascontiguousarray(made, np.float32)


def normalisation(spec: FeatureSpec) -> npt.NDArray[np.float32]:
    """Return what normalises images that are bytes as `batch` does: float32 [2, channels, 1, 1]."""
    return np.array([spec.mean, spec.scale], np.float32)[:, :, None, None]


class _Images:
    """Images, decoded and resized when they are asked for."""

    def __init__(
        self, layout: Layout, values: Values, size: tuple[int, int], channels: int, row_name: RowName
    ) -> None:
        is_uint8 = isinstance(values, Variable) or values.dtype == np.uint8
        self.dtype: np.dtype[Any] = np.dtype(np.uint8 if is_uint8 else np.float32)
        self.shape = (len(values), channels, *size)
        self._layout = layout
        self._values = values
        self._row_name = row_name
        self._pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        made = np.empty((len(rows), *self.shape[1:]), self.dtype)

        def fill(place: int) -> None:
            row = int(rows[place])
            pixels = of_row(self._row_name, row, self._layout.columns[0], lambda: self._image(row))
            made[place] = pixels.transpose(2, 0, 1)

        if len(rows) == 1:
            fill(0)
        else:
            self._pool = self._pool or ThreadPoolExecutor(_THREADS, thread_name_prefix="tensile-decode")
            for _ in self._pool.map(fill, range(len(rows))):
                pass
        if self.dtype != np.uint8:
            require_finite(made, rows, self._row_name, ())
        return made

    def _image(self, row: int) -> npt.NDArray[Any]:
        layout, values = self._layout, self._values
        height, width, channels = layout.shape
        if isinstance(values, Variable) and not layout.raw:
            pixels: npt.NDArray[Any] = images.decode(values[row], self.shape[2:])
        else:
            shape = (channels, height, width) if layout.channels_first else layout.shape
            if isinstance(values, Variable):
                pixels = images.from_raw(values[row], shape)
            else:
                pixels = values[row].astype(self.dtype).reshape(shape)
            if layout.channels_first:
                pixels = pixels.transpose(1, 2, 0)
        return images.resize(images.to_channels(pixels, self.shape[1]), self.shape[2:])


class _Vectors:
    """Numbers of several columns, or of an array, put together when they are asked for."""

    def __init__(self, layout: Layout, values: Sequence[npt.NDArray[Any]], row_name: RowName) -> None:
        exact = all(column.dtype in EXACT_IN_FLOAT32 for column in values)
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if exact else np.float64)
        self.shape = (len(values[0]), *layout.shape)
        self._values = values
        self._row_name = row_name
        self._columns = [column.name for column in layout.columns]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        made = np.empty((len(rows), *self.shape[1:]), self.dtype)
        if len(self._values) == 1:
            made[:] = self._values[0][rows].reshape(made.shape)
        else:
            for place, column in enumerate(self._values):
                made[:, place] = column[rows]
        require_finite(made, rows, self._row_name, self._columns)
        return made


def _written(rows: RowArray, nbytes: int, path: Path, progress: Callable[[int], None]) -> RowArray:
    """Write rows to a file and return it mapped; the rows as they are where the disk is full.

    Beside, then renamed: to cut short a file that another attempt has mapped would kill its process.
    """
    descriptor, name = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            try:
                # A disk that is full while a mapped file grows kills the process, too.
                os.posix_fallocate(descriptor, 0, max(nbytes, 1))
            except OSError:
                return rows
            for begin in range(0, len(rows), _BLOCK_ROWS):
                end = min(begin + _BLOCK_ROWS, len(rows))
                file.write(rows[np.arange(begin, end)].data)
                progress(end)
        Path(name).rename(path)
    finally:
        Path(name).unlink(missing_ok=True)
    return np.memmap(path, rows.dtype, "r", shape=rows.shape) if nbytes else np.empty(rows.shape, rows.dtype)
