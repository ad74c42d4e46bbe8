"""From columns as read to an array of all rows' features, once; batches are cut from it.

The array keeps the source's own units and channels (uint8 images, float32 else): it is on disk, and a batch
is made float32, normalised and spread over the network's channels when it is asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data import images
from tensile_db.data.columns import Column, Form, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.feature_spec import FeatureSpec, Kind
from tensile_db.errors import BadData, InvalidRequest, TensileError

#: Rows prepared together, and then written.
BLOCK_ROWS = 1024
#: Pillow lets go of the interpreter's lock while it decodes.
DECODING_THREADS = 4

#: Names a row for people, by its place.
RowName = Callable[[int], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the features of a source are, before a network has said what it wants."""

    kind: Kind
    columns: tuple[Column, ...]
    #: (height, width, channels) or (features,).
    shape: tuple[int, ...]
    #: Whether bytes are the pixels themselves.
    raw: bool


def find_layout(
    columns: Sequence[Column],
    values: Sequence[Values],
    *,
    wants_images: bool,
    raw_shape: Sequence[int] | None,
    row_name: RowName,
) -> Layout:
    """Return what the columns hold, judged by the first row where bytes are encoded images.

    wants_images: whether the network takes images; then arrays are images too.  Raises InvalidRequest where
    they cannot be, UndecodableImage for a first row that is none.
    """
    first = columns[0]
    shape = None if raw_shape is None else _image_shape(raw_shape)
    if first.form is Form.BYTES:
        assert isinstance(values[0], Variable), "bytes have varying lengths"
        if shape is None:
            shape = _of_row(row_name, 0, first, lambda: images.decode(values[0][0])).shape
        return Layout(kind="image", columns=tuple(columns), shape=shape, raw=raw_shape is not None)
    assert not isinstance(values[0], Variable), "numbers have one width"
    if first.form is Form.ARRAY and (wants_images or shape is not None):
        dimensions = values[0].shape[1:]
        shape = shape or _shape_of_array(first, dimensions)
        if np.prod(shape) != np.prod(dimensions):
            raise InvalidRequest(
                f"raw_shape {list(shape)} has {np.prod(shape):,} elements, but arrays of"
                f' column "{first.name}" have {np.prod(dimensions):,}',
                hint="Give the height, width and channels that the arrays have.",
            )
        return Layout(kind="image", columns=tuple(columns), shape=shape, raw=True)
    if first.form is Form.ARRAY:
        return Layout(
            kind="vector", columns=tuple(columns), shape=(int(np.prod(values[0].shape[1:])),), raw=True
        )
    return Layout(kind="vector", columns=tuple(columns), shape=(len(columns),), raw=True)


def prepare(
    layout: Layout,
    values: Sequence[Values],
    *,
    size: tuple[int, int] | None,
    path: Path,
    row_name: RowName,
    progress: Callable[[int], None] = lambda _: None,
) -> npt.NDArray[Any]:
    """Write all rows' features to a file and return them mapped.

    They are [rows, channels, height, width] or [rows, features].  size: (height, width) that images are
    resized to; None for vectors.  progress is told the rows done, and may raise to stop.
    Raises UndecodableImage and RaggedArray, naming the row.
    """
    count = len(values[0])
    if layout.kind == "vector":
        shape: tuple[int, ...] = (count, *layout.shape)
    else:
        assert size is not None, "images are resized"
        shape = (count, layout.shape[2], *size)
    is_bytes = layout.columns[0].form is Form.BYTES
    is_uint8 = is_bytes or (layout.kind == "image" and values[0].dtype == np.uint8)  # type: ignore[union-attr]  # Variable is bytes
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8 if is_uint8 else np.float32, shape=shape)
    with ThreadPoolExecutor(DECODING_THREADS, thread_name_prefix="tensile-decode") as pool:
        for begin in range(0, count, BLOCK_ROWS):
            rows = range(begin, min(begin + BLOCK_ROWS, count))
            if layout.kind == "vector":
                out[rows.start : rows.stop] = _vectors(values, rows)
            else:
                made = pool.map(lambda row: _image(layout, values[0], row, size, row_name), rows)
                for row, pixels in zip(rows, made, strict=True):
                    out[row] = pixels.transpose(2, 0, 1)
            progress(rows.stop)
    out.flush()
    return out


def statistics(
    features: npt.NDArray[Any], rows: npt.NDArray[np.int64], row_name: RowName
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation over these rows, for each channel or feature; of constants 1 instead.

    Raises BadData for a number that is not finite, naming its row.
    """
    axes = (0, 2, 3) if features.ndim == 4 else (0,)
    per_row = int(np.prod(features.shape[2:]))
    total = np.zeros(features.shape[1])
    squares = np.zeros(features.shape[1])
    for block in _blocks(rows):
        values = features[block].astype(np.float64)
        if not np.isfinite(values).all():
            bad = int(block[np.flatnonzero(~np.isfinite(values.reshape(len(block), -1)).all(axis=1))[0]])
            raise BadData(
                f"the features of row {row_name(bad)} hold NaN or an infinite number",
                hint="Leave such rows out by a view, or replace the values.",
            )
        total += values.sum(axis=axes)
    mean = total / (len(rows) * per_row)
    centre = mean.reshape(-1, *([1] * (features.ndim - 2)))
    for block in _blocks(rows):
        # In two passes: the difference of two large sums would leave nothing of a small deviation.
        squares += np.square(features[block].astype(np.float64) - centre).sum(axis=axes)
    scale = np.sqrt(squares / (len(rows) * per_row))
    scale[scale < 1e-12 * np.maximum(1.0, np.abs(mean))] = 1.0
    return tuple(mean.tolist()), tuple(scale.tolist())


def batch(
    features: npt.NDArray[Any], rows: npt.NDArray[np.int64], spec: FeatureSpec
) -> npt.NDArray[np.float32]:
    """Return the features of some rows as the network takes them, float32 [rows, *spec.input_shape]."""
    tail = [1] * (features.ndim - 2)
    mean = np.asarray(spec.mean, np.float32).reshape(-1, *tail)
    scale = np.asarray(spec.scale, np.float32).reshape(-1, *tail)
    values = (features[rows].astype(np.float32) - mean) / scale
    if spec.kind == "image" and values.shape[1] != spec.channels:
        values = np.repeat(values, spec.channels, axis=1)
    return np.ascontiguousarray(values, np.float32)


def _vectors(values: Sequence[Values], rows: range) -> npt.NDArray[np.float32]:
    parts = [np.asarray(column[rows.start : rows.stop], np.float32) for column in values]  # type: ignore[index]  # no Variable here
    return np.concatenate([part.reshape(len(rows), -1) for part in parts], axis=1)


def _image(
    layout: Layout, values: Values, row: int, size: tuple[int, int] | None, row_name: RowName
) -> npt.NDArray[Any]:
    def make() -> npt.NDArray[Any]:
        if not isinstance(values, Variable):
            pixels = values[row].reshape(layout.shape)
            pixels = pixels if pixels.dtype == np.uint8 else pixels.astype(np.float32)
        elif layout.raw:
            pixels = images.from_raw(values[row], layout.shape)
        else:
            pixels = images.decode(values[row])
        assert size is not None, "images are resized"
        return images.resize(images.to_channels(pixels, layout.shape[2]), size)

    return _of_row(row_name, row, layout.columns[0], make)


def _of_row(
    row_name: RowName, row: int, column: Column, make: Callable[[], npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    """Return what `make` does; an error of it becomes a sentence about the row."""
    try:
        return make()
    except TensileError as error:
        message = f'column "{column.name}" of row {row_name(row)} {error.message}'
        raise type(error)(message, hint=error.hint) from error


def _image_shape(raw_shape: Sequence[int]) -> tuple[int, int, int]:
    if len(raw_shape) not in (2, 3) or min(raw_shape) < 1:
        raise InvalidRequest(
            f"raw_shape {list(raw_shape)} is no shape of an image",
            hint="Give [height, width] or [height, width, channels].",
        )
    height, width, channels = (*raw_shape, 1)[:3]
    return height, width, channels


def _shape_of_array(column: Column, dimensions: tuple[int, ...]) -> tuple[int, int, int]:
    if len(dimensions) in (2, 3):
        return _image_shape(dimensions)
    for channels in (1, 3):
        side = isqrt(dimensions[0] // channels)
        if len(dimensions) == 1 and side * side * channels == dimensions[0]:
            return side, side, channels
    raise InvalidRequest(
        f'arrays of {dimensions[0]:,} elements in column "{column.name}" are no square images',
        hint='Give options => \'{"raw_shape": [height, width, channels]}\', or use architecture "mlp".',
    )


def _blocks(rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    for begin in range(0, len(rows), BLOCK_ROWS):
        yield rows[begin : begin + BLOCK_ROWS]
