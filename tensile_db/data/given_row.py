"""What a session gives as a row: JSON, or array_send() of a double precision[]; and what is wrong with it."""

import json
import math
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.errors import InvalidRequest, UndefinedColumn

#: How JSON carries what it has no numbers for.
NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})

#: Type of the elements that array_send() is given.
_ELEMENT = np.dtype([("nbytes", ">i4"), ("value", ">f8")])

#: Of a whole number; a numeric has up to 131,072.
_MOST_DIGITS = 400

#: Of names of columns in a hint, more than PostgreSQL lets a name have.
_LONGEST_NAME = 64


def parsed(data: bytes) -> Any:
    """Return what JSON says; whole numbers as such only where they are short."""
    try:
        return json.loads(data, parse_int=_whole)
    except RecursionError:
        raise InvalidRequest("the row's JSON is nested too deeply", hint="Give a list of numbers.") from None


def _whole(digits: str) -> int | float:
    # Python refuses to read long ones as whole numbers, and none of them is one of a column's.
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def by_name(spec: FeatureSpec, given: dict[str, Any]) -> list[Any]:
    """Return the values of the model's columns, in their order."""
    missing = [name for name in spec.columns if name not in given]
    if missing:
        raise UndefinedColumn(
            f'the row has no column "{missing[0]}", from which the model learned',
            hint=f"It has: {_listed(given)}.",
        )
    return [given[name] for name in spec.columns]


def elements(sent: bytes) -> npt.NDArray[np.float64] | None:
    """Return the elements that array_send() wrote, in their dimensions; None where one is NULL."""
    count = int(np.frombuffer(sent, ">i4", 1)[0])
    dimensions = np.frombuffer(sent, ">i4", 2 * count, offset=12)[::2].tolist() if count else [0]
    # A NULL has no bytes.  PostgreSQL's flag tells of a bitmap, which may be there for none.
    if len(sent) - 12 - 8 * count < prod(dimensions) * _ELEMENT.itemsize:
        return None
    elements = np.frombuffer(sent, _ELEMENT, offset=12 + 8 * count)["value"]
    return elements.astype(np.float64).reshape(dimensions)


def elements_or_nan(spec: FeatureSpec, sent: bytes) -> list[float]:
    """Return the elements that array_send() wrote, NaN for NULL, of which there are as many as columns.

    Raises InvalidRequest where there are not.
    """
    count = int(np.frombuffer(sent, ">i4", 1)[0])
    number = prod(np.frombuffer(sent, ">i4", 2 * count, offset=12)[::2].tolist()) if count else 0
    if number != len(spec.columns):
        raise wrong_count(spec, number)
    found = []
    position = 12 + 8 * count
    for _ in range(number):
        is_null = int.from_bytes(sent[position : position + 4], "big", signed=True) < 0
        position += 4
        found.append(math.nan if is_null else float(np.frombuffer(sent, ">f8", 1, position)[0]))
        position += 0 if is_null else 8
    return found


def as_read(spec: FeatureSpec, place: int, numbers: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Return numbers as a source's column of that place would have brought them."""
    kept = np.dtype(spec.dtypes[place] if spec.dtypes else np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        found = numbers.astype(kept)
    if kept.kind in "biu" and not np.array_equal(found, numbers):
        # It was a column of whole numbers or truth values, and this is none of them.
        return numbers
    # Where a real has no room for it, it is infinite, and refused as such.
    return found


def wrong_count(spec: FeatureSpec, count: int) -> InvalidRequest:
    """Return the error of as many values, which are not as many as columns."""
    wanted = len(spec.columns)
    given = "1 value is given" if count == 1 else f"{count:,} values are given"
    return InvalidRequest(
        f"{given}, but the model learned from {wanted:,} column{'' if wanted == 1 else 's'}",
        hint=f"Give these, in this order: {', '.join(spec.columns)}.",
    )


def _listed(given: dict[str, Any]) -> str:
    # Any role may give any names, and they go into a hint.
    names = [name[:_LONGEST_NAME].encode(errors="replace").decode() for name in given]
    return ", ".join(names[:20]) + (", ..." if len(names) > 20 else "") if names else "none"
