"""Classes and their codes: what a target column holds, and what comes back in predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.columns import Column, Form, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.layout import RowName
from tensile_db.data.texts import first_longer, unique_texts
from tensile_db.errors import BadData

#: A class as JSON has it.
Class = int | bool | str

#: A target with more different values than this is hardly a class; networks would have as many outputs.
MAX_CLASSES = 100_000
#: A text longer than this is hardly a label.
MAX_LABEL_NBYTES = 1000

#: By the type of a class in JSON, a type of columns that hold such.
_TYPES: Mapping[type, str] = {bool: "boolean", int: "bigint", str: "text"}

#: By the bytes of a float, below which it has every whole number.
_ALL_WHOLE_BELOW = {4: 2**24, 8: 2**53}


def find_classes(values: Values, column: Column, row_name: RowName) -> tuple[Class, ...]:
    """Return the classes among the values, sorted; texts by code point.

    Raises BadData where there is but one, or too many, or one is too long, naming its row.
    """
    _require_short(values, column, row_name)
    unique, _ = _unique(values)
    if len(unique) > MAX_CLASSES:
        raise BadData(
            f'column "{column.name}" holds {len(unique):,} different values, too many for classes',
            hint='Choose another target, or train a regression with options => \'{"task": "regression"}\'.',
        )
    classes = _as_classes(unique, column)
    if len(classes) == 1:
        raise BadData(
            f'column "{column.name}" holds one class only, {_shown(classes[0])}: there is nothing to learn',
            hint="Use a source with two classes or more.",
        )
    return classes


def widen_classes(
    values: Values, column: Column, known: Sequence[Class], row_name: RowName
) -> tuple[Class, ...]:
    """Return the classes that a model knows, and behind them those among the values that it does not, sorted.

    Raises BadData where these are of another type, where they come to too many, or one is too long, naming
    its row.
    """
    _require_short(values, column, row_name)
    unique, _ = _unique(values)
    _require_whole(unique, column)
    there = set(known)
    new = tuple(label for label in _as_classes(unique, column) if label not in there)
    if any(type(label) is not type(known[0]) for label in new):
        raise _of_another_type(known, new, column)
    if len(known) + len(new) > MAX_CLASSES:
        raise BadData(
            f'column "{column.name}" holds {len(new):,} classes that the model does not know, which come to'
            f" {len(known) + len(new):,} with its own, more than {MAX_CLASSES:,}",
            hint="Leave rows of new classes out by a view.",
        )
    return (*known, *new)


def encode(
    values: Values, column: Column, classes: Sequence[Class], row_name: RowName
) -> npt.NDArray[np.int64]:
    """Return each value's place among the classes, int64 [rows].

    Raises BadData for a value that is none of the classes, naming it, or its row where it is too long.
    """
    _require_short(values, column, row_name)
    unique, inverse = _unique(values)
    _require_whole(unique, column)
    place_of = {label: place for place, label in enumerate(classes)}
    found = _as_classes(unique, column)
    unknown = [label for label in found if label not in place_of]
    if unknown:
        _require_type_of(classes, unknown, column)
        raise BadData(
            f'column "{column.name}" holds {_shown(unknown[0])}, a class that the model was not trained on',
            hint="Leave such rows out by a view, or train the model on them too.",
        )
    codes = np.array([place_of[label] for label in found], np.int64)
    return codes[inverse]


def label_text(label: Class) -> str:
    """Return a class as PostgreSQL writes it."""
    if isinstance(label, bool):
        return "true" if label else "false"
    return str(label)


def _shown(label: Class) -> str:
    """Return a class for a sentence: texts in quotes."""
    return label_text(label) if isinstance(label, bool) else repr(label)


def _require_short(values: Values, column: Column, row_name: RowName) -> None:
    if not isinstance(values, Variable):
        return
    row = first_longer(values, MAX_LABEL_NBYTES)
    if row is not None:
        raise BadData(
            f'column "{column.name}" of row {row_name(row)} holds a text of {len(values[row]):,} bytes, too'
            " long for a class",
            hint=f"Labels may have {MAX_LABEL_NBYTES:,} bytes; choose another target column.",
        )


def _require_whole(unique: Sequence[Any], column: Column) -> None:
    """Refuse numbers with fractions, NaN and infinities, none of which is a class, and rounded numbers."""
    for value in unique:
        if not isinstance(value, float):
            continue
        if not value.is_integer():
            raise BadData(
                f'column "{column.name}" holds {value!r}, a class that the model was not trained on',
                hint="Leave such rows out by a view, or turn them into whole numbers there.",
            )
        if abs(value) >= _ALL_WHOLE_BELOW[column.dtype.itemsize]:
            raise BadData(
                f'column "{column.name}" holds {value!r}, to which whole numbers may have been rounded',
                hint="Have the source hold whole numbers (bigint), as when the model was trained.",
            )


def _require_type_of(classes: Sequence[Class], unknown: Sequence[Class], column: Column) -> None:
    """Refuse texts where no class is one, and others where all are, as of a table that was imported anew."""
    if (column.form is Form.TEXT) != any(isinstance(label, str) for label in classes):
        raise _of_another_type(classes, unknown, column)


def _of_another_type(classes: Sequence[Class], unknown: Sequence[Class], column: Column) -> BadData:
    """Return the error of classes that are of another type than a model's."""
    is_text = column.form is Form.TEXT
    wanted = _TYPES[type(classes[0])]
    # Fractions, of which there are none here, would be written out; an enum can be cast to text alone.
    through = "::text" if is_text else "" if column.is_integer or column.is_boolean else "::bigint"
    return BadData(
        f'column "{column.name}" holds {_shown(unknown[0])}, but the classes that the model was trained on'
        f" are of type {wanted}, as {_shown(classes[0])} is",
        hint=f"Write them so in a view, as by {column.quoted}{through}::{wanted}.",
    )


def _unique(values: Values) -> tuple[list[Any], npt.NDArray[np.int64]]:
    """Return the different values, sorted, and for each row which it holds."""
    if isinstance(values, Variable):
        return unique_texts(values)
    unique, inverse = np.unique(values, return_inverse=True)
    return unique.tolist(), inverse.reshape(-1).astype(np.int64)


def _as_classes(unique: Sequence[Any], column: Column) -> tuple[Class, ...]:
    if column.form is Form.TEXT:
        try:
            return tuple(text.decode() for text in unique)
        except UnicodeDecodeError as error:
            raise BadData(
                f'column "{column.name}" holds a label that is not UTF-8: {error.object!r}',
                hint="Convert the labels in a view, or use a database that has an encoding.",
            ) from error
    return tuple(bool(label) if column.is_boolean else int(label) for label in unique)
