"""How columns become features where not each is a number in every row: found by the rows that are trained on.

A text is one of the column's categories, the different texts of these rows, each of which has a feature
(one-hot encoding).  In place of a number that is NULL the column's mean is taken (mean imputation).  Where
one of these rows has a NULL, of numbers or texts, one more feature tells of it (a missing indicator).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.column_encodings import Categories, ColumnEncoding, Number
from tensile_db.data.columns import NULL_TEXT, Column, Form, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.layout import RowName, in_row
from tensile_db.data.texts import shortened, unique_texts
from tensile_db.errors import BadData

#: A column with more different texts than this is hardly one of categories; each is an input of the network.
MAX_CATEGORIES = 1000
#: A text longer than this is hardly a category.
MAX_CATEGORY_NBYTES = 1000

#: Of a text that is none of the categories.
UNKNOWN = -1


def need_encodings(columns: Sequence[Column]) -> bool:
    """Whether columns become features in another way than each as a number in every row."""
    return any(column.form is Form.TEXT or column.keeps_nulls or column.time for column in columns)


def find_encodings(
    columns: Sequence[Column], values: Sequence[Values], rows: npt.NDArray[np.int64], row_name: RowName
) -> tuple[ColumnEncoding, ...]:
    """Return how columns of numbers and texts become features.

    values: of all rows; rows: places of those that are trained on.
    Raises BadData where a column has too many categories, or one is too long, naming its row.
    """
    return tuple(
        _categories(column, found, rows, row_name)
        if isinstance(found, Variable)
        else _number(column, found[rows])
        for column, found in zip(columns, values, strict=True)
    )


def codes_of(texts: Variable, encoding: Categories) -> npt.NDArray[np.int16]:
    """Return the place of each row's text among the column's features, or UNKNOWN; int16 [rows]."""
    unique, inverse = _unique(texts)
    return np.array(_codes(unique, encoding), np.int16)[inverse]


def unknown_by_column(
    spec: FeatureSpec, columns: Sequence[Column], values: Sequence[Values]
) -> list[tuple[str, list[str]]]:
    """Return each of a model's columns of texts, by name, with what it holds that is none of its categories.

    columns, values: the model's columns, as the source has them now.
    """
    return [
        (column.name, unknown_texts(texts, encoding))
        for place, (column, texts) in enumerate(zip(columns, values, strict=True))
        if isinstance(texts, Variable) and isinstance(encoding := spec.encoding_of(place), Categories)
    ]


def unknown_texts(texts: Variable, encoding: Categories) -> list[str]:
    """Return the texts that are none of the categories, sorted, long ones cut."""
    unique, _ = _unique(texts)
    codes = _codes(unique, encoding)
    return [
        text.decode(errors="replace")
        for text, code in zip(unique, codes, strict=True)
        if code == UNKNOWN and text != NULL_TEXT
    ]


def _unique(texts: Variable) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    # One that is too long for a category is none, whatever it ends with.
    return unique_texts(shortened(texts, MAX_CATEGORY_NBYTES))


def _codes(texts: Sequence[bytes], encoding: Categories) -> list[int]:
    code_of = {text.encode(): place for place, text in enumerate(encoding.texts)}
    if encoding.tells_null:
        code_of[NULL_TEXT] = len(encoding.texts)
    # A column of type character(n) has spaces at the end in JSON, and none in a source that is read.
    return [code_of.get(text, code_of.get(text.rstrip(b" "), UNKNOWN)) for text in texts]


def _number(column: Column, numbers: npt.NDArray[Any]) -> Number:
    if not column.keeps_nulls:
        return Number(time=column.time)
    tells_null = bool(np.isnan(numbers).any())
    # One that is infinite is refused later, naming its row.
    finite = numbers[np.isfinite(numbers)].astype(np.float64)
    fill = 0.0
    if len(finite):
        # The sum of large ones would be infinite.  The mean of equal ones may be a little beside them.
        fill = float(np.clip((finite / len(finite)).sum(), finite.min(), finite.max()))
    return Number(fill=fill, tells_null=tells_null, time=column.time)


def _categories(
    column: Column, texts: Variable, rows: npt.NDArray[np.int64], row_name: RowName
) -> Categories:
    is_longer = np.diff(texts.offsets)[rows] > MAX_CATEGORY_NBYTES
    if is_longer.any():
        row = int(rows[is_longer.argmax()])
        raise BadData(
            f"{in_row(row_name, row, column)} holds a text of {len(texts[row]):,} bytes,"
            " too long for a category",
            hint=f"Categories may have {MAX_CATEGORY_NBYTES:,} bytes: leave the column out of features.",
        )
    unique, inverse = _unique(texts)
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
    return Categories(texts=tuple(_decoded(text, column) for text in trained_on), tells_null=tells_null)


def _decoded(text: bytes, column: Column) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise BadData(
            f'column "{column.name}" holds a text that is not UTF-8: {error.object!r}',
            hint="Convert the texts in a view, or use a database that has an encoding.",
        ) from error
