"""Features of columns of numbers, texts and times, by their encodings."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.column_encodings import Categories, ColumnEncoding, Number
from tensile_db.data.columns import EXACT_IN_FLOAT32, Column, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.encodings import UNKNOWN, codes_of
from tensile_db.data.layout import IMPUTE_NAN, REPLACE, RowName, in_row
from tensile_db.errors import BadData


def encode_rows(
    columns: Sequence[Column],
    values: Sequence[Values],
    encodings: Sequence[ColumnEncoding],
    row_name: RowName,
) -> "EncodedRows":
    """Return the features of all rows.  Raises BadData for a number that is not finite, naming its row."""
    encoded = [
        _encoded(column, found, encoding, row_name)
        for column, found, encoding in zip(columns, values, encodings, strict=True)
    ]
    return EncodedRows(encoded, encodings)


class EncodedRows:
    """An array of rows, put together when they are asked for: of each column its features, side by side."""

    def __init__(self, values: Sequence[npt.NDArray[Any]], encodings: Sequence[ColumnEncoding]) -> None:
        """values: of each column its numbers, or the place of each text among its features; [rows]."""
        self._values = values
        self._encodings = encodings
        is_exact = all(
            isinstance(encoding, Categories) or found.dtype in EXACT_IN_FLOAT32
            for found, encoding in zip(values, encodings, strict=True)
        )
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if is_exact else np.float64)
        self.shape = (len(values[0]), sum(encoding.width for encoding in encodings))

    def numbers(self) -> "EncodedRows":
        """Return the same rows with their numbers alone, one for each column of such; there must be some."""
        kept = [
            (values, replace(encoding, tells_null=False))
            for values, encoding in zip(self._values, self._encodings, strict=True)
            if isinstance(encoding, Number)
        ]
        return EncodedRows([values for values, _ in kept], [encoding for _, encoding in kept])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        made = np.zeros((len(rows), self.shape[1]), self.dtype)
        begin = 0
        for values, encoding in zip(self._values, self._encodings, strict=True):
            _put(made[:, begin : begin + encoding.width], values[rows], encoding)
            begin += encoding.width
        return made


def _put(features: npt.NDArray[Any], values: npt.NDArray[Any], encoding: ColumnEncoding) -> None:
    """Put a column's features where there are zeros; features: [rows, encoding.width], values: [rows]."""
    if isinstance(encoding, Categories):
        known = np.flatnonzero(values != UNKNOWN)
        features[known, values[known]] = 1
    elif encoding.fill is None:
        features[:, 0] = values
    else:
        is_null = np.isnan(values)
        features[:, 0] = np.where(is_null, encoding.fill, values)
        if encoding.tells_null:
            features[:, 1] = is_null


def _encoded(column: Column, values: Values, encoding: ColumnEncoding, row_name: RowName) -> npt.NDArray[Any]:
    if isinstance(values, Variable):
        assert isinstance(encoding, Categories), "texts are categories"
        return codes_of(values, encoding)
    assert isinstance(encoding, Number), "numbers are no categories"
    is_usable, others = np.isfinite(values), "NaN or a number out of range"
    if encoding.fill is not None:
        is_usable |= np.isnan(values)
        others = "an infinite number"
    if not is_usable.all():
        row = int(is_usable.argmin())
        raise BadData(
            f"{in_row(row_name, row, column)} holds {others}",
            hint=REPLACE + (IMPUTE_NAN if np.isnan(values[row]) else ""),
        )
    return values
