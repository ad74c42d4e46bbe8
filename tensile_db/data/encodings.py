"""How columns of texts, and columns with NULLs, become features.

A text is one of the column's categories, those of the rows that are trained on, and each of these has a
feature that is 1 where the column holds it and else 0 (one-hot coding).  NULL is a category of its own.
Where a number is NULL the column's mean stands in for it, and one more feature tells that it was (imputation
by the mean, with missing-indicators).  A column has a feature for NULL only where a row that is trained on
has one.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.columns import EXACT_IN_FLOAT32, NULL_TEXT, Column, Form, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.feature_spec import ColumnEncoding, encoded_names
from tensile_db.data.layout import RowName, of_row, require_finite
from tensile_db.data.texts import unique_texts
from tensile_db.errors import BadData

#: A column with more different texts than this is hardly one of categories; each is an input of the network.
MAX_CATEGORIES = 1000
#: A text longer than this is hardly a category.
MAX_CATEGORY_NBYTES = 1000

#: Of a text that is none of the categories.
_UNKNOWN = -1


def need_encodings(columns: Sequence[Column]) -> bool:
    """Whether columns become features in another way than each number one."""
    return any(column.form is Form.TEXT or column.keeps_nulls or column.time for column in columns)


def find_encodings(
    columns: Sequence[Column], values: Sequence[Values], rows: npt.NDArray[np.int64], row_name: RowName
) -> tuple[ColumnEncoding, ...]:
    """Return how columns of numbers and texts become features, by the rows that are trained on.

    values: of all rows; rows: places of those that are trained on.
    Raises BadData where a column has too many categories, or one is too long, naming its row.
    """
    return tuple(
        _of_texts(column, found, rows, row_name)
        if isinstance(found, Variable)
        else _of_numbers(column, found[rows])
        for column, found in zip(columns, values, strict=True)
    )


def constant_columns(is_constant: Sequence[bool], encodings: Sequence[ColumnEncoding]) -> tuple[bool, ...]:
    """Return of each column whether all its features have one value; is_constant: of each feature."""
    flags = iter(is_constant)
    return tuple(all(list(islice(flags, encoding.width))) for encoding in encodings)


def unknown_texts(values: Variable, encoding: ColumnEncoding) -> list[str]:
    """Return the texts that are none of the categories, sorted."""
    known = {text.encode() for text in encoding.categories or ()} | {NULL_TEXT}
    return [text.decode(errors="replace") for text in unique_texts(values)[0] if text not in known]


class EncodedRows:
    """Features of columns of numbers and texts, put together when they are asked for."""

    def __init__(
        self,
        columns: Sequence[Column],
        values: Sequence[Values],
        encodings: Sequence[ColumnEncoding],
        row_name: RowName,
    ) -> None:
        """values: of all rows.  Raises BadData for a text that is too long, naming its row."""
        self._encodings = encodings
        self._row_name = row_name
        #: Of each column its numbers, or each text's place among the categories.
        self._values = [
            _codes(column, found, encoding, row_name) if isinstance(found, Variable) else found
            for column, found, encoding in zip(columns, values, encodings, strict=True)
        ]
        self._names = encoded_names([column.name for column in columns], encodings)
        exact = all(
            encoding.categories is not None or found.dtype in EXACT_IN_FLOAT32
            for found, encoding in zip(self._values, encodings, strict=True)
        )
        self.dtype: np.dtype[Any] = np.dtype(np.float32 if exact else np.float64)
        self.shape = (len(self._values[0]), len(self._names))

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: npt.NDArray[np.int64], /) -> npt.NDArray[Any]:
        made = np.zeros((len(rows), *self.shape[1:]), self.dtype)
        begin = 0
        for found, encoding in zip(self._values, self._encodings, strict=True):
            part = made[:, begin : begin + encoding.width]
            if encoding.categories is None:
                _put_numbers(part, found[rows], encoding)
            else:
                codes = found[rows]
                there = np.flatnonzero(codes != _UNKNOWN)
                part[there, codes[there]] = 1
            begin += encoding.width
        require_finite(made, rows, self._row_name, self._names)
        return made


def _put_numbers(part: npt.NDArray[Any], numbers: npt.NDArray[Any], encoding: ColumnEncoding) -> None:
    part[:, 0] = numbers
    if encoding.fill is not None:
        is_null = np.isnan(numbers)
        part[is_null, 0] = encoding.fill
        if encoding.tells_null:
            part[:, 1] = is_null


def _of_numbers(column: Column, numbers: npt.NDArray[Any]) -> ColumnEncoding:
    if not column.keeps_nulls:
        return ColumnEncoding(time=column.time)
    tells_null = bool(np.isnan(numbers).any())
    # One that is infinite is refused later, naming its row.
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    fill = 0.0
    if len(finite):
        # The sum of large ones would be infinite.  The mean of equal ones may be a little beside them.
        fill = float(np.clip((finite / len(finite)).sum(), finite.min(), finite.max()))
    return ColumnEncoding(fill=fill, tells_null=tells_null, time=column.time)


def _of_texts(
    column: Column, texts: Variable, rows: npt.NDArray[np.int64], row_name: RowName
) -> ColumnEncoding:
    _require_short(texts, column, row_name)
    unique, inverse = unique_texts(texts)
    trained_on = [unique[place] for place in np.unique(inverse[rows]).tolist()]
    tells_null = column.keeps_nulls and NULL_TEXT in trained_on
    if tells_null:
        trained_on.remove(NULL_TEXT)
    if len(trained_on) > MAX_CATEGORIES:
        raise BadData(
            f'column "{column.name}" holds {len(trained_on):,} different texts, too many for categories',
            hint=f"Each is an input of the network, {MAX_CATEGORIES:,} at most: leave the column out of"
            " features, or have a view put the rare ones together.",
        )
    return ColumnEncoding(
        categories=tuple(_decoded(text, column) for text in trained_on), tells_null=tells_null
    )


def _codes(
    column: Column, texts: Variable, encoding: ColumnEncoding, row_name: RowName
) -> npt.NDArray[np.int16]:
    """Return each text's place among the column's features, int16 [rows]."""
    _require_short(texts, column, row_name)
    assert encoding.categories is not None, "texts have categories"
    code_of = {text.encode(): place for place, text in enumerate(encoding.categories)}
    if encoding.tells_null:
        code_of[NULL_TEXT] = len(encoding.categories)
    unique, inverse = unique_texts(texts)
    # A column of type character(n) has spaces at the end in JSON, and none in a source that is read.
    codes = [code_of.get(text, code_of.get(text.rstrip(b" "), _UNKNOWN)) for text in unique]
    return np.array(codes, np.int16)[inverse]


def _require_short(texts: Variable, column: Column, row_name: RowName) -> None:
    lengths = np.diff(texts.offsets)
    too_long = np.flatnonzero(lengths > MAX_CATEGORY_NBYTES)
    if len(too_long):
        row = int(too_long[0])

        def refuse() -> None:
            raise BadData(
                f"holds a text of {int(lengths[row]):,} bytes, too long for a category",
                hint=f"Categories may have {MAX_CATEGORY_NBYTES:,} bytes: leave the column out of features.",
            )

        of_row(row_name, row, column, refuse)


def _decoded(text: bytes, column: Column) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise BadData(
            f'column "{column.name}" holds a text that is not UTF-8: {error.object!r}',
            hint="Convert the texts in a view, or use a database that has an encoding.",
        ) from error
