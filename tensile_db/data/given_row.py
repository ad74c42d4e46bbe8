"""What a session gives as a row: JSON, or array_send() of a double precision[]; and what is wrong with it."""

import json
import math
import struct
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.errors import InvalidRequest, UndefinedColumn

#: How JSON carries what it has no numbers for.
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})

#: Type of the elements that array_send() is given.
_ELEMENT = np.dtype([("nbytes", ">i4"), ("value", ">f8")])

#: Of a length of -1; that of a number is 8.
_NULLS_FIRST_BYTE = 0xFF

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


def elements(sent: bytes) -> tuple[npt.NDArray[np.float64], bool]:
    """Return the elements that array_send() wrote, in their dimensions, and whether one is NULL, then NaN."""
    count = int(np.frombuffer(sent, ">i4", 1)[0])
    dimensions = np.frombuffer(sent, ">i4", 2 * count, offset=12)[::2].tolist() if count else [0]
    begin, size = 12 + 8 * count, prod(dimensions)
    # A NULL has no bytes.  PostgreSQL's flag tells of a bitmap, which may be there for none.
    if len(sent) - begin >= size * _ELEMENT.itemsize:
        found = np.frombuffer(sent, _ELEMENT, offset=begin)["value"].astype(np.float64)
        return found.reshape(dimensions), False
    if len(sent) - begin < 4 * size:
        raise InvalidRequest("the array ends before its last element", hint="Give a double precision[].")
    # The lengths, 8 or -1, tell where the next one is: each is looked at in turn.
    values = np.full(size, np.nan)
    position = begin
    for place in range(size):
        is_null = sent[position] == _NULLS_FIRST_BYTE
        position += 4
        if not is_null:
            (values[place],) = struct.unpack_from(">d", sent, position)
            position += 8
    return values.reshape(dimensions), True


def unnested(given: Any) -> Any:
    """Return the array in an array, as jsonb_build_array(array) is; others as they are."""
    while isinstance(given, list) and len(given) == 1 and isinstance(given[0], list):
        (given,) = given
    return given


def no_row(spec: FeatureSpec, given: Any) -> InvalidRequest:
    """Return the error of what is neither an object nor an array."""
    return InvalidRequest(
        f"features given as {json.dumps(given)[:40]} are no row",
        hint=f"Give an object with the columns of the model: {', '.join(spec.columns)}.",
    )


def is_number(value: Any) -> bool:
    """Whether what JSON says is a number or boolean, or how it carries what it has no numbers for."""
    return isinstance(value, int | float) or (isinstance(value, str) and value in _NOT_FINITE)


def as_number(value: Any) -> float:
    """Return what `is_number` has found to be one."""
    try:
        return float(value)
    except OverflowError:
        # JSON's whole numbers have no end.
        return math.inf


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
