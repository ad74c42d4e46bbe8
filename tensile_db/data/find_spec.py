"""How features are made of rows, by those that are trained on: what is kept with the model."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data import unexpected
from tensile_db.data.column_encodings import Categories, ColumnEncoding, feature_columns
from tensile_db.data.columns import Column, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.encoded_rows import EncodedRows
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.layout import Layout
from tensile_db.data.statistics import LEAST_SPREAD, RowArray, statistics
from tensile_db.errors import BadData


def find_spec(
    layout: Layout,
    values: Sequence[Values],
    made: RowArray,
    training_rows: npt.NDArray[np.int64],
    size: tuple[int, ...],
    channels: int,
    check: Callable[[], None] = lambda: None,
) -> tuple[FeatureSpec, Sequence[str]]:
    """Return how features are made of a row, by the rows that are trained on, and what may surprise in these.

    values: the columns as read; made: all rows' features; size, channels: of the network's images.
    check: called now and then; may raise to stop.
    Raises BadData where numbers are too far apart.
    """
    columns, encodings, count = layout.columns, layout.encodings, len(training_rows)
    names = [column.name for column in columns]
    surprises: list[str] = []
    if encodings:
        mean, scale = _of_encoded(columns, made, training_rows, encodings, check)
        constant = [
            _is_constant(encoding, found, training_rows)
            for encoding, found in zip(encodings, values, strict=True)
        ]
        surprises += unexpected.constant_columns(columns, constant, count)
        counts = [len(each.texts) if isinstance(each, Categories) else 0 for each in encodings]
        surprises += unexpected.rare_categories(columns, counts, count)
    else:
        mean, scale, is_constant = statistics(_Watched(made, check), training_rows)
        _require_finite(mean, scale, names)
        if layout.kind == "vector":
            surprises += unexpected.constant_columns(columns, is_constant, count)
    spec = FeatureSpec(
        kind=layout.kind,
        columns=tuple(names),
        source_shape=layout.shape,
        raw=layout.raw,
        channels_first=layout.channels_first,
        size=size,
        channels=channels,
        mean=mean,
        scale=scale,
        dtypes=read_dtypes(values),
        encodings=encodings,
        takes_nulls=any(column.keeps_nulls for column in columns),
    )
    return spec, surprises


def read_dtypes(values: Sequence[Values]) -> tuple[str, ...]:
    """Return what columns were read as, as `FeatureSpec` has it."""
    return tuple("uint8" if isinstance(column, Variable) else column.dtype.name for column in values)


def _of_encoded(
    columns: Sequence[Column],
    made: RowArray,
    training_rows: npt.NDArray[np.int64],
    encodings: Sequence[ColumnEncoding],
    check: Callable[[], None],
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and scale of each feature: 0 and 1 of what is 0 or 1, however rare it is."""
    are_numbers = [flag for encoding in encodings for flag in encoding.are_numbers]
    means, scales = np.zeros(len(are_numbers)), np.ones(len(are_numbers))
    places = np.flatnonzero(are_numbers)
    if len(places):
        numbers = made.numbers() if isinstance(made, EncodedRows) else _Watched(made, check, places)
        means[places], scales[places], _ = statistics(_Watched(numbers, check), training_rows)
        _require_finite(means, scales, feature_columns([column.name for column in columns], encodings))
    return tuple(means.tolist()), tuple(scales.tolist())


def _is_constant(encoding: ColumnEncoding, values: Values, training_rows: npt.NDArray[np.int64]) -> bool:
    """Whether all of a column's features have one value each in all rows that are trained on."""
    if isinstance(encoding, Categories):
        return encoding.width == 1
    assert not isinstance(values, Variable), "texts are categories"
    numbers = values[training_rows]
    known = numbers[~np.isnan(numbers)]
    if encoding.tells_null:
        return not len(known)
    return len(known) < 2 or float(known.max()) - float(known.min()) < LEAST_SPREAD


class _Watched:
    """Rows, some of their features or all; whoever asks for some is checked on."""

    def __init__(
        self, rows: RowArray, check: Callable[[], None], places: npt.NDArray[np.int64] | None = None
    ) -> None:
        self._rows = rows
        self._check = check
        self._places = places
        self.dtype = rows.dtype
        self.shape = rows.shape if places is None else (rows.shape[0], len(places))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        self._check()
        found = self._rows[rows]
        return found if self._places is None else found[:, self._places]


def _require_finite(mean: Iterable[float], scale: Iterable[float], names: Sequence[str]) -> None:
    """Refuse features whose deviation is beyond float64.  Raises BadData."""
    for place, numbers in enumerate(zip(mean, scale, strict=True)):
        if not np.isfinite(numbers).all():
            # Of arrays and images there is but one.
            name = names[min(place, len(names) - 1)]
            raise BadData(
                f'the column "{name}" has numbers too far apart to be learned from',
                hint="Look for values that stand for none, e.g. 1e300, and leave their rows out.",
            )
