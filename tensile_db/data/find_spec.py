"""How features are made of rows, by those that are trained on: what is kept with the model."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensile_db.data import unexpected
from tensile_db.data.column_encodings import feature_columns
from tensile_db.data.columns import Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.encodings import are_constant
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.layout import Layout
from tensile_db.data.statistics import RowArray, statistics
from tensile_db.errors import BadData


def find_spec(
    layout: Layout,
    values: Sequence[Values],
    made: RowArray,
    training_rows: npt.NDArray[np.int64],
    size: tuple[int, ...],
    channels: int,
) -> tuple[FeatureSpec, Sequence[str]]:
    """Return how features are made of a row, by the rows that are trained on, and what may surprise in these.

    values: the columns as read; made: all rows' features; size, channels: of the network's images.
    Raises BadData where numbers are too far apart.
    """
    mean, scale, is_constant = statistics(made, training_rows)
    columns = [column.name for column in layout.columns]
    encodings = layout.encodings
    _require_finite(mean, scale, feature_columns(columns, encodings) if encodings else columns)
    if encodings:
        # A category is 0 or 1 to the network, however rare it is.
        are_numbers = [flag for encoding in encodings for flag in encoding.are_numbers]
        mean = tuple(value if flag else 0.0 for value, flag in zip(mean, are_numbers, strict=True))
        scale = tuple(value if flag else 1.0 for value, flag in zip(scale, are_numbers, strict=True))
        is_constant = are_constant(is_constant, encodings)
    surprises: Sequence[str] = ()
    if layout.kind == "vector":
        surprises = unexpected.constant_columns(layout.columns, is_constant, len(training_rows))
    spec = FeatureSpec(
        kind=layout.kind,
        columns=tuple(columns),
        source_shape=layout.shape,
        raw=layout.raw,
        channels_first=layout.channels_first,
        size=size,
        channels=channels,
        mean=mean,
        scale=scale,
        dtypes=read_dtypes(values),
        encodings=encodings,
        takes_nulls=any(column.keeps_nulls for column in layout.columns),
    )
    return spec, surprises


def read_dtypes(values: Sequence[Values]) -> tuple[str, ...]:
    """Return what columns were read as, as `FeatureSpec` has it."""
    return tuple("uint8" if isinstance(column, Variable) else column.dtype.name for column in values)


def _require_finite(mean: Sequence[float], scale: Sequence[float], names: Sequence[str]) -> None:
    """Refuse features whose deviation is beyond float64.  Raises BadData."""
    for place, numbers in enumerate(zip(mean, scale, strict=True)):
        if not np.isfinite(numbers).all():
            name = names[place] if len(names) == len(mean) else names[0]
            raise BadData(
                f'the column "{name}" has numbers too far apart to be learned from',
                hint="Look for values that stand for none, e.g. 1e300, and leave their rows out.",
            )
