"""Features of columns of numbers, texts and times, by their encodings."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.column_encodings import Categories, ColumnEncoding, Number
from tensile_db.data.columns import EXACT_IN_FLOAT32, Column, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.encodings import UNKNOWN, codes_of
from tensile_db.data.layout import RowName, in_row
from tensile_db.errors import BadData


class EncodedRows:
    """An array of rows, put together when they are asked for: of each column its features, side by side."""

    def __init__(
        self,
        columns: Sequence[Column],
        values: Sequence[Values],
        encodings: Sequence[ColumnEncoding],
        row_name: RowName,
    ) -> None:
        """values: of all rows.

        Raises BadData for a text that is too long, and for a number that is not finite, naming its row.
        """
        self._encodings = encodings
        #: Of each column its numbers, or the place of each text among its features.
        self._values = [
            _checked(column, found, encoding, row_name)
            for column, found, encoding in zip(columns, values, encodings, strict=True)
        ]
        is_exact = all(
            isinstance(encoding, Categories) or found.dtype in EXACT_IN_FLOAT32
            for found, encoding in zip(self._values, encodings, strict=True)
        )
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if is_exact else np.float64)
        self.shape = (len(self._values[0]), sum(encoding.width for encoding in encodings))

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


def _checked(column: Column, values: Values, encoding: ColumnEncoding, row_name: RowName) -> npt.NDArray[Any]:
    if isinstance(values, Variable):
        assert isinstance(encoding, Categories), "texts are categories"
        return codes_of(column, values, encoding, row_name)
    assert isinstance(encoding, Number), "numbers are no categories"
    is_usable = np.isfinite(values)
    if encoding.fill is not None:
        is_usable |= np.isnan(values)
    if not is_usable.all():
        row = int(is_usable.argmin())
        raise BadData(
            f"{in_row(row_name, row, column)} holds NaN or a number out of range",
            hint="Leave such rows out by a view, or replace the values.",
        )
    return values
