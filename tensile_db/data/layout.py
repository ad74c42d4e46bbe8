"""What the columns of a source hold: images, or vectors of numbers and categories."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isqrt, prod
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tensile_db.data import images
from tensile_db.data.column_encodings import ColumnEncoding
from tensile_db.data.columns import Column, Form, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.feature_spec import Kind
from tensile_db.errors import BadData, InvalidRequest, TensileError, UndecodableImage

#: Grey and RGB.
_CHANNELS = (1, 3)

#: Rows that are looked at first to see whether any image has colours: a source may begin with a grey one.
_SAMPLE_ROWS = 64
_ROWS_A_CHECK = 256

T = TypeVar("T")

#: Names a row for people, by its place; "" where there is but one.
RowName = Callable[[int], str]

#: Hints at what to do about numbers that cannot be learned from; and about NaN in columns of numbers.
REPLACE = "Leave such rows out by a view, or replace the values."
IMPUTE_NAN = """ A model trained with options => '{"nulls": "impute"}' takes NaN as it does NULL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What the features of a source are, before a network has said what it wants."""

    kind: Kind
    columns: tuple[Column, ...]
    #: (height, width, channels) or (features,).
    shape: tuple[int, ...]
    #: Whether bytes are the pixels themselves.
    raw: bool
    #: Whether pixels come as (channels, height, width) instead.
    channels_first: bool = False
    #: Of columns of numbers and texts, where any is of texts or may be NULL; else ().
    encodings: tuple[ColumnEncoding, ...] = ()


def find_layout(
    columns: Sequence[Column],
    values: Sequence[Values],
    *,
    wants_images: bool,
    raw_shape: Sequence[int] | None,
    row_name: RowName,
    check: Callable[[], None] = lambda: None,
) -> Layout:
    """Return what the columns hold; of encoded images some are looked at, and all where those are grey.

    wants_images: whether the network takes images; then arrays are images too.
    raw_shape: of the pixels, (height, width), (height, width, channels) or (channels, height, width).
    check: called now and then; may raise to stop.
    Raises InvalidRequest where they cannot be images, UndecodableImage naming its row.
    """
    first, found = columns[0], values[0]
    if isinstance(found, Variable):
        if raw_shape is not None:
            return _pixels(columns, raw_shape, "raw_shape")
        sampled = _encoded_shape(first, found, row_name, check)
        return Layout(kind="image", columns=tuple(columns), shape=sampled, raw=False)
    if first.form is Form.ARRAY and (wants_images or raw_shape is not None):
        dimensions = found.shape[1:]
        if raw_shape is not None and prod(raw_shape) != prod(dimensions):
            raise InvalidRequest(
                f"raw_shape {list(raw_shape)} has {prod(raw_shape):,} elements, but arrays of"
                f' column "{first.name}" have {prod(dimensions):,}',
                hint="Give the height, width and channels that the arrays have.",
            )
        if raw_shape is not None and contradicts(dimensions, raw_shape):
            raise InvalidRequest(
                f"raw_shape {list(raw_shape)} contradicts the dimensions {list(dimensions)} of the arrays of"
                f' column "{first.name}"',
                hint="Leave raw_shape out, or give the dimensions in the order that the arrays have them.",
            )
        return _pixels(columns, raw_shape or _shape_of_array(first, dimensions), "an array's shape")
    shape = (prod(found.shape[1:]),) if first.form is Form.ARRAY else (len(columns),)
    return Layout(kind="vector", columns=tuple(columns), shape=shape, raw=True)


def encoded_layout(columns: Sequence[Column], encodings: tuple[ColumnEncoding, ...]) -> Layout:
    """Return what columns of numbers, texts and times hold that become features by these encodings."""
    shape = (sum(encoding.width for encoding in encodings),)
    return Layout(kind="vector", columns=tuple(columns), shape=shape, raw=True, encodings=encodings)


def contradicts(dimensions: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether arrays of these dimensions have others than the shape, or these in another order.

    They may have neighbouring ones as one, as rows of pixels with their channels side by side do, and flat
    arrays; those of 1 make no difference.
    """
    left = iter([side for side in shape if side != 1])
    for length in dimensions:
        joined = 1
        while joined < length:
            joined *= next(left, length + 1)
        if joined != length:
            return True
    return next(left, None) is not None


def of_row(row_name: RowName, row: int, column: Column, make: Callable[[], T]) -> T:
    """Return what `make` makes of a row; its error becomes a sentence about that row."""
    try:
        return make()
    except TensileError as error:
        message = f"{in_row(row_name, row, column)} {error.message}"
        raise type(error)(message, hint=error.hint) from error


def in_row(row_name: RowName, row: int, column: Column) -> str:
    """Return a column of a row, to begin a sentence with."""
    return f'column "{column.name}"{_of(row_name, row)}'


def _of(row_name: RowName, row: int) -> str:
    name = row_name(row)
    return f" of row {name}" if name else ""


def _encoded_shape(
    column: Column, found: Variable, row_name: RowName, check: Callable[[], None]
) -> tuple[int, int, int]:
    """Return the first image's height and width, and the most channels that any image has.

    Some rows, all over the source, tell nearly always; only where these are grey all are looked at.
    """
    some = np.unique(np.linspace(0, len(found) - 1, _SAMPLE_ROWS).astype(np.int64)).tolist()
    try:
        first = most = _probed(column, found, 0, row_name)
        for place, row in enumerate(chain(some, range(len(found)))):
            if most[2] == max(_CHANNELS):
                break
            if place % _ROWS_A_CHECK == 0:
                check()
            most = max(most, _probed(column, found, row, row_name), key=itemgetter(2))
    except images.NoImageFile as error:
        pixels = "For bytes that are pixels give options => '{\"raw_shape\": [height, width, channels]}'."
        raise UndecodableImage(error.message, hint=f"{pixels} {error.hint}") from error
    return first[0], first[1], most[2]


def _probed(column: Column, found: Variable, row: int, row_name: RowName) -> tuple[int, int, int]:
    return of_row(row_name, row, column, lambda: images.probe(found[row]))


def _pixels(columns: Sequence[Column], shape: Sequence[int], what: str) -> Layout:
    if len(shape) in (2, 3) and min(shape) >= 1:
        height, width, channels = (*shape, 1)[:3]
        if channels in _CHANNELS:
            return Layout(kind="image", columns=tuple(columns), shape=(height, width, channels), raw=True)
        if height in _CHANNELS:
            return Layout(
                kind="image",
                columns=tuple(columns),
                shape=(width, channels, height),
                raw=True,
                channels_first=True,
            )
    raise InvalidRequest(
        f"{what} {list(shape)} is no shape of an image",
        hint="Give [height, width], [height, width, channels] or [channels, height, width], with 1 channel"
        " or 3.",
    )


def _shape_of_array(column: Column, dimensions: tuple[int, ...]) -> tuple[int, ...]:
    if len(dimensions) != 1:
        return dimensions
    for channels in _CHANNELS:
        side = isqrt(dimensions[0] // channels)
        if side * side * channels == dimensions[0]:
            return side, side, channels
    raise InvalidRequest(
        f'arrays of {dimensions[0]:,} elements in column "{column.name}" are no square images',
        hint='Give options => \'{"raw_shape": [height, width, channels]}\', or use architecture "mlp".',
    )


def require_finite(
    values: npt.NDArray[Any], rows: npt.NDArray[np.int64], row_name: RowName, columns: Sequence[str]
) -> None:
    """Raise BadData for a number that is not finite, naming its row and, where that tells it, its column.

    values: [rows, ...]; rows: their places in the source; columns: their names, as many as values of a row
    unless there is one of arrays, or none of images.
    """
    finite = np.isfinite(values.reshape(len(values), -1))
    if not finite.all():
        first = int(finite.all(axis=1).argmin())
        of_row = _of(row_name, int(rows[first]))
        what, hint = f"features{of_row} hold", REPLACE
        if len(columns) == finite.shape[1]:
            place = int(finite[first].argmin())
            what = f'feature "{columns[place]}"{of_row} holds'
            if np.isnan(values[first, place]):
                hint += IMPUTE_NAN
        raise BadData(f"the {what} NaN or a number out of range", hint=hint)
