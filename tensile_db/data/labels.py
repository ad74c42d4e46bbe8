"""Classes and their codes: what a target column holds, and what comes back in predictions."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensile_db.data.columns import Column, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.errors import BadData

#: A class as JSON has it.
Class = int | bool | str

#: A target with more different values than this is hardly a class; networks would have as many outputs.
MAX_CLASSES = 100_000
#: A text longer than this is hardly a label.
MAX_LABEL_NBYTES = 1000


def find_classes(values: Values, column: Column) -> tuple[Class, ...]:
    """Return the classes among the values, sorted; texts by code point.

    Raises BadData where there is but one, or too many.
    """
    unique, _ = _unique(values)
    if len(unique) > MAX_CLASSES:
        raise BadData(
            f'column "{column.name}" holds {len(unique):,} different values, too many for classes',
            hint='Choose another target, or train a regression with options => \'{"task": "regression"}\'.',
        )
    classes = _as_classes(unique, column)
    if len(classes) == 1:
        raise BadData(
            f'column "{column.name}" holds one class only, {classes[0]!r}: there is nothing to learn',
            hint="Use a source with two classes or more.",
        )
    return classes


def encode(values: Values, column: Column, classes: Sequence[Class]) -> npt.NDArray[np.int64]:
    """Return each value's place among the classes, int64 [rows].

    Raises BadData for a value that is none of the classes, naming it.
    """
    unique, inverse = _unique(values)
    place_of = {label: place for place, label in enumerate(classes)}
    found = _as_classes(unique, column)
    unknown = [label for label in found if label not in place_of]
    if unknown:
        raise BadData(
            f'column "{column.name}" holds {unknown[0]!r}, a class that the model was not trained on',
            hint="Leave such rows out by a view, or train the model on them too.",
        )
    codes = np.array([place_of[label] for label in found], np.int64)
    return codes[inverse]


def _unique(values: Values) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]:
    """Return the different values, and for each row which it holds."""
    if isinstance(values, Variable):
        values = _fixed_width(values)
    unique, inverse = np.unique(values, return_inverse=True)
    return unique, inverse.reshape(-1).astype(np.int64)


def _fixed_width(texts: Variable) -> npt.NDArray[np.bytes_]:
    """Return texts as bytes of one width, padded with zeros; PostgreSQL's texts hold no zero byte."""
    lengths = np.diff(texts.offsets)
    width = int(lengths.max(initial=1))
    if width > MAX_LABEL_NBYTES:
        raise BadData(
            f"a label of {width:,} bytes",
            hint=f"Labels may have {MAX_LABEL_NBYTES:,} bytes; choose another target column.",
        )
    width = max(width, 1)
    padded = np.zeros((len(texts), width), np.uint8)
    for place in range(width):
        # A column of bytes at a time: as many steps as the longest label has bytes.
        rows = np.flatnonzero(lengths > place)
        padded[rows, place] = texts.data[texts.offsets[rows] + place]
    return padded.view(f"S{width}").reshape(-1)


def _as_classes(unique: npt.NDArray[np.generic], column: Column) -> tuple[Class, ...]:
    if unique.dtype.kind == "S":
        return tuple(label.decode() for label in unique.tolist())
    if column.is_boolean:
        return tuple(bool(label) for label in unique.tolist())
    return tuple(int(label) for label in unique.tolist())
