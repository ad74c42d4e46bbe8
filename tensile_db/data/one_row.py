"""The features of one row that a session gives by itself, made as the model's training rows were.

Its values come as bytes, in one of the forms below; numbers come wider than the column may have been that the
model learned from, and are brought back to what that was read as before anything is done.

    bytes    an image, as a bytea column holds it
    array    array_send() of a double precision[]
    object   JSON: values by the names of the columns, or in an array, in their order
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data import features
from tensile_db.data.as_trained import (
    has_dimensions,
    learned_from,
    not_from_arrays,
    not_from_images,
    other_dimensions,
)
from tensile_db.data.columns import Column, Form, Variable
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
from tensile_db.data.layout import Layout
from tensile_db.data.one_encoded_row import encoded_values
from tensile_db.errors import InvalidRequest, RaggedArray, UndecodableImage

#: How JSON carries a bytea.  Possessive, for else each repetition of a long one is remembered.
_HEX = re.compile(r"\\x(?:[0-9a-fA-F]{2})*+")
#: Where the session's `bytea_output` is `escape`: all printable characters but the backslash stand for
#: themselves.  Only a backslash tells this from a text.
_ESCAPED_BYTES = re.compile(r"(?:[ -\[\]-~]++|\\\\|\\[0-3][0-7]{2})*+")


def features_of_row(spec: FeatureSpec, form: str, data: bytes) -> npt.NDArray[np.float32] | None:
    """Return the features of a row, float32 [*spec.input_shape]; None where one is NULL that must not be.

    Raises InvalidRequest and UndefinedColumn for what is no row of the model's, RaggedArray, and what
    `features.prepare` raises for a row's values.
    """
    read = encoded_values if spec.encodings else _values
    values = read(spec, form, data)
    if values is None:
        return None
    layout = Layout(
        kind=spec.kind,
        columns=tuple(
            Column(name=name, form=Form.TEXT if spec.has_categories(place) else Form.FIXED)
            for place, name in enumerate(spec.columns)
        ),
        encodings=spec.encodings,
        shape=spec.source_shape,
        raw=spec.raw,
        channels_first=spec.channels_first,
    )
    size = (spec.size[0], spec.size[1]) if spec.kind == "image" else None
    rows = features.rows_of(layout, values, size, spec.channels or None, lambda _: "")
    try:
        made: npt.NDArray[np.float32] = features.batch(rows, np.zeros(1, np.int64), spec, lambda _: "")[0]
    except UndecodableImage as error:
        # There are no other rows to go on with.
        raise UndecodableImage(
            error.message, hint="Give a whole PNG, JPEG, WebP, GIF or BMP file."
        ) from error
    except RaggedArray as error:
        # Nor has a prediction the option that the hint names.
        raise RaggedArray(error.message, hint="Give as many bytes as those had of the training.") from error
    return made


def _values(spec: FeatureSpec, form: str, data: bytes) -> list[Values] | None:
    """Return the row's value of each column, as if read from a source of one row; None for a NULL."""
    if form == "bytes":
        return _image_values(spec, data)
    if form == "array":
        numbers, has_null = elements(data)
        return None if has_null else _array_values(spec, numbers)
    given = unnested(parsed(data))
    if isinstance(given, list):
        _require_single(spec, given)
        _require_count(spec, given)
        if spec.kind == "image" and given and isinstance(given[0], str):
            return _written_image(spec, given[0])
        return _array_values(spec, _numbers(spec, given))
    if not isinstance(given, dict):
        raise no_row(spec, given)
    found = by_name(spec, given)
    if any(value is None for value in found):
        return None
    if len(found) == 1 and isinstance(found[0], list):
        return _array_values(spec, _numbers(spec, found[0]))
    if spec.kind == "image":
        return _written_image(spec, found[0])
    _require_single(spec, found)
    return _array_values(spec, _numbers(spec, found))


def _written_image(spec: FeatureSpec, value: Any) -> list[Values]:
    if isinstance(value, str) and (data := _written_bytes(value)) is not None:
        return _image_values(spec, data)
    raise InvalidRequest(
        f'column "{spec.columns[0]}" is no image',
        hint="In JSON, give the bytes as PostgreSQL writes a bytea, \\x and hexadecimal digits.",
    )


def _written_bytes(value: str) -> bytes | None:
    """Return the bytes that PostgreSQL writes so; None where the text is no bytea."""
    if _HEX.fullmatch(value):
        return bytes.fromhex(value[2:])
    if "\\" in value and _ESCAPED_BYTES.fullmatch(value):
        # Python's escapes are more, but these are the same.
        return value.encode("ascii").decode("unicode_escape").encode("latin-1")
    return None


def _require_count(spec: FeatureSpec, values: Sequence[Any]) -> None:
    """Refuse more or fewer values than columns, whether or not one is NULL.

    The elements of the only column's array, which has a length of its own, may be given as values.
    """
    are_elements = len(spec.columns) == 1 and spec.source_shape != (1,)
    # No number has one, and each way to write a bytea does.
    if are_elements and not any(isinstance(value, str) and "\\" in value for value in values):
        return
    if len(values) != len(spec.columns):
        raise wrong_count(spec, len(values))


def _require_single(spec: FeatureSpec, values: Sequence[Any]) -> None:
    """Refuse a list among the values of several columns: its elements would go to other columns."""
    if len(spec.columns) < 2:
        return
    for name, value in zip(spec.columns, values, strict=False):
        if isinstance(value, list):
            raise InvalidRequest(
                f'column "{name}" is given as an array, but the model learned from numbers or booleans there',
                hint=f"Give one value for each of {', '.join(spec.columns)}.",
            )


def _image_values(spec: FeatureSpec, data: bytes) -> list[Values]:
    if spec.kind != "image":
        raise not_from_images(spec, hint="Give an array of numbers, or a whole row.")
    return [Variable(data=np.frombuffer(data, np.uint8), offsets=np.array([0, len(data)]))]


def _array_values(spec: FeatureSpec, numbers: npt.NDArray[np.float64] | None) -> list[Values] | None:
    """Return the same of numbers, which have the dimensions that they were given with."""
    if numbers is None:
        return None
    if spec.is_file:
        raise not_from_arrays(spec, hint="Give a bytea.")
    want = int(np.prod(spec.source_shape))
    if numbers.size != want:
        if len(spec.columns) > 1 or spec.source_shape == (1,):
            raise wrong_count(spec, numbers.size)
        raise RaggedArray(
            f"the array has {numbers.size:,} elements, but the model was trained on {want:,}",
            hint="Give a row like those of the training.",
        )
    if not has_dimensions(spec, numbers.shape):
        raise other_dimensions(
            spec, "the array has", numbers.shape, hint="Give an array of these in this order, or a flat one."
        )
    if len(spec.columns) == 1:
        return [as_read(spec, 0, numbers.reshape(1, -1))]
    return [as_read(spec, place, numbers.reshape(-1, 1)[place]) for place in range(len(spec.columns))]


def _numbers(spec: FeatureSpec, given: Sequence[Any]) -> npt.NDArray[np.float64] | None:
    """Return JSON's numbers, in lists of lists, too, in the dimensions of these; None where one is null."""
    flat, lengths, is_even = _flattened(given)
    if any(value is None for value in flat):
        return None
    for value in flat:
        if not is_number(value):
            raise InvalidRequest(
                f"{json.dumps(value)[:40]} is no number",
                hint=f"The model learned from {learned_from(spec)}, numbers or booleans.",
            )
    if not is_even:
        raise RaggedArray(
            "the array's rows are not all of one length and depth",
            hint="Give an array like those of the training, or a flat one.",
        )
    return np.array([as_number(value) for value in flat]).reshape([n for n in lengths if n != 1] or [-1])


def _flattened(given: Sequence[Any]) -> tuple[list[Any], list[int], bool]:
    """Return what lists of lists hold, the first ones' lengths by depth, and whether all are like these."""
    flat: list[Any] = []
    lengths = [len(given)]
    depths: set[int] = set()
    is_even = True
    # Once through, whatever its depth.
    left = [iter(given)]
    while left:
        for value in left[-1]:
            if isinstance(value, list):
                if len(left) == len(lengths):
                    lengths.append(len(value))
                is_even &= len(value) == lengths[len(left)]
                left.append(iter(value))
                break
            depths.add(len(left))
            flat.append(value)
        else:
            left.pop()
    return flat, lengths, is_even and depths <= {len(lengths)}
