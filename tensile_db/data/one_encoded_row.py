"""The values of one row for a model whose columns have encodings: texts, times, numbers that may be NULL."""

import json
import math
from typing import Any

import numpy as np

from tensile_db.data.as_trained import not_from_images
from tensile_db.data.columns import NULL_TEXT, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.given_row import (
    as_number,
    as_read,
    by_name,
    elements,
    is_number,
    no_row,
    parsed,
    unnested,
    wrong_count,
)
from tensile_db.errors import InvalidRequest


def encoded_values(spec: FeatureSpec, form: str, data: bytes) -> list[Values] | None:
    """Return the row's value of each column, as if read from a source of one row.

    form, data: as of `one_row.features_of_row`.  None for a NULL where the model takes none.
    Raises InvalidRequest and UndefinedColumn for what is no row of the model's.
    """
    if form == "bytes":
        raise not_from_images(spec, hint="Give a whole row, or an object.")
    found = _of_array(spec, data) if form == "array" else _of_json(spec, data)
    if not spec.takes_nulls and any(value is None for value in found):
        return None
    return [_value(spec, place, value) for place, value in enumerate(found)]


def _of_array(spec: FeatureSpec, data: bytes) -> list[Any]:
    """Return an array's numbers, None for NULL."""
    texts = [name for place, name in enumerate(spec.columns) if spec.has_categories(place)]
    if texts:
        raise InvalidRequest(
            f'the model learned from texts in column "{texts[0]}", and an array has numbers alone',
            hint="Give a whole row, or jsonb_build_array(...) in the order of the model's columns.",
        )
    numbers, has_null = elements(data)
    if numbers.size != len(spec.columns):
        raise wrong_count(spec, numbers.size)
    # Where one is NULL and the model takes none, it does not matter which.
    return [None if has_null and math.isnan(number) else number for number in numbers.reshape(-1).tolist()]


def _of_json(spec: FeatureSpec, data: bytes) -> list[Any]:
    """Return the values of the model's columns as JSON has them, in their order."""
    given = unnested(parsed(data))
    if isinstance(given, dict):
        return by_name(spec, given)
    if not isinstance(given, list):
        raise no_row(spec, given)
    if len(given) != len(spec.columns):
        raise wrong_count(spec, len(given))
    return given


def _value(spec: FeatureSpec, place: int, value: Any) -> Values:
    if spec.has_categories(place):
        if value is not None and not isinstance(value, str):
            raise _given_as(spec, place, value, "no text", hint="Give it in quotes, or cast it to text.")
        # What is no Unicode is none of the categories.
        text = NULL_TEXT if value is None else value.encode(errors="replace")
        return Variable(data=np.frombuffer(text, np.uint8), offsets=np.array([0, len(text)]))
    is_time = bool(spec.time_of(place))
    if value is not None and (not is_number(value) or (is_time and isinstance(value, bool))):
        what, hint = "no number", "Give a number, not in quotes."
        if is_time:
            what, hint = "no time", "Give it in quotes, or as seconds."
        raise _given_as(spec, place, value, what, hint=hint)
    return as_read(spec, place, np.array([math.nan if value is None else as_number(value)]))


def _given_as(spec: FeatureSpec, place: int, value: Any, what: str, *, hint: str) -> InvalidRequest:
    given = json.dumps(value)[:40]
    return InvalidRequest(f'column "{spec.columns[place]}" is given as {given}, which is {what}', hint=hint)
