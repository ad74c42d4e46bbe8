"""The values of one row for a model that learned from columns of texts, or whose columns may be NULL."""

import json
import math
from typing import Any

import numpy as np

from tensile_db.data.as_trained import learned_from, not_from_images
from tensile_db.data.columns import NULL_TEXT, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.given_row import NOT_FINITE, as_read, by_name, elements_or_nan, parsed, wrong_count
from tensile_db.errors import InvalidRequest


def encoded_values(spec: FeatureSpec, form: str, data: bytes) -> list[Values] | None:
    """Return the row's value of each column, as if read from a source of one row.

    form, data: as of `one_row.features_of_row`.  None for a NULL where the model takes none.
    Raises InvalidRequest and UndefinedColumn for what is no row of the model's.
    """
    if form == "bytes":
        raise not_from_images(spec, hint="Give a whole row, or an object.")
    if form == "array":
        return _of_array(spec, data)
    given = parsed(data)
    # An array in an array, as jsonb_build_array(array) is.
    while isinstance(given, list) and len(given) == 1 and isinstance(given[0], list):
        (given,) = given
    if isinstance(given, list):
        if len(given) != len(spec.columns):
            raise wrong_count(spec, len(given))
        found = given
    elif isinstance(given, dict):
        found = by_name(spec, given)
    else:
        raise InvalidRequest(
            f"features given as {json.dumps(given)[:40]} are no row",
            hint=f"Give an object with the columns of the model: {', '.join(spec.columns)}.",
        )
    if not spec.takes_nulls and any(value is None for value in found):
        return None
    return [_value(spec, place, value) for place, value in enumerate(found)]


def _of_array(spec: FeatureSpec, data: bytes) -> list[Values] | None:
    texts = [name for place, name in enumerate(spec.columns) if spec.has_categories(place)]
    if texts:
        raise InvalidRequest(
            f'the model learned from texts in column "{texts[0]}", and an array has numbers alone',
            hint="Give a whole row, or jsonb_build_array(...) in the order of the model's columns.",
        )
    return [
        as_read(spec, place, np.array([number])) for place, number in enumerate(elements_or_nan(spec, data))
    ]


def _value(spec: FeatureSpec, place: int, value: Any) -> Values:
    if spec.has_categories(place):
        if value is not None and not isinstance(value, str):
            raise _no("text", spec, place, value)
        text = NULL_TEXT if value is None else value.encode(errors="replace")
        return Variable(data=np.frombuffer(text, np.uint8), offsets=np.array([0, len(text)]))
    if value is None:
        number = math.nan
    elif isinstance(value, int | float) or (isinstance(value, str) and value in NOT_FINITE):
        try:
            number = float(value)
        except OverflowError:
            # JSON's whole numbers have no end.
            number = math.inf
    else:
        raise _no("number", spec, place, value)
    return as_read(spec, place, np.array([number]))


def _no(what: str, spec: FeatureSpec, place: int, value: Any) -> InvalidRequest:
    return InvalidRequest(
        f'column "{spec.columns[place]}" is given as {json.dumps(value)[:40]}, which is no {what}',
        hint=f"The model learned from {learned_from(spec)}.",
    )
