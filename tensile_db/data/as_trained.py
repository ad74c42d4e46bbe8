"""Whether what is given to a model is of the kind that it learned from: files, arrays, numbers or texts."""

from collections.abc import Sequence

import numpy as np

from tensile_db.data.column_encodings import Categories
from tensile_db.data.columns import Column, Form, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.layout import Layout, contradicts
from tensile_db.errors import InvalidRequest

_OTHER_SOURCE = "Name a source whose rows are like those of the training."

_TEXTS, _NUMBERS = "texts", "numbers or booleans"


def require_as_trained(spec: FeatureSpec, columns: Sequence[Column], values: Sequence[Values]) -> None:
    """Refuse columns of another kind, or arrays of other dimensions, than those that a model was trained on.

    columns: the model's, as the source has them now; values: of at least one row.  Raises InvalidRequest.
    """
    column, found = columns[0], values[0]
    if column.form is Form.BYTES:
        if spec.kind != "image":
            raise not_from_images(spec, hint=_OTHER_SOURCE)
    elif column.form is Form.ARRAY:
        if spec.is_file or spec.encodings:
            raise not_from_arrays(spec, hint=_OTHER_SOURCE)
        assert isinstance(found, np.ndarray), "arrays have one shape"
        _require_dimensions(spec, column, found.shape[1:])
    elif spec.kind == "image" or spec.is_array:
        raise InvalidRequest(
            f"the model learned from {learned_from(spec)}, {_kind(spec)}, and not from"
            f" {'texts' if column.form is Form.TEXT else 'numbers'}",
            hint=_OTHER_SOURCE,
        )
    else:
        for place, each in enumerate(columns):
            _require_same_kind(spec, place, each)


def layout_as_trained(spec: FeatureSpec, columns: Sequence[Column], values: Sequence[Values]) -> Layout:
    """Return the layout of the columns that a model was trained on, as the source has them now.

    Arguments and errors as of `require_as_trained`.
    """
    require_as_trained(spec, columns, values)
    return Layout(
        kind=spec.kind,
        columns=tuple(columns),
        shape=spec.source_shape,
        raw=spec.raw,
        channels_first=spec.channels_first,
        encodings=spec.encodings,
    )


def as_kept(spec: FeatureSpec, values: Values) -> Values:
    """Return a column as it was kept when the model was trained.

    Models of images that were made while truth values were kept as bytes learned from them rounded.
    """
    was_bytes = spec.kind == "image" and spec.dtypes in ((), ("uint8",))
    if was_bytes and not isinstance(values, Variable) and values.dtype == np.bool_:
        return values.view(np.uint8)
    return values


def not_from_images(spec: FeatureSpec, *, hint: str) -> InvalidRequest:
    """Return the error of bytes given to a model of numbers."""
    return InvalidRequest(f"the model learned from {learned_from(spec)}, not from images", hint=hint)


def not_from_arrays(spec: FeatureSpec, *, hint: str) -> InvalidRequest:
    """Return the error of an array given to a model of images in files, or of texts, times or with NULLs."""
    return InvalidRequest(
        f"the model learned from {learned_from(spec)}, {_kind(spec)}, and not from arrays", hint=hint
    )


def has_dimensions(spec: FeatureSpec, dimensions: Sequence[int]) -> bool:
    """Whether an array of as many elements as the model's may have its pixels in the model's order."""
    # Of arrays that are no images only the number of elements was kept.
    return spec.kind != "image" or not contradicts(dimensions, spec.stored_shape)


def other_dimensions(spec: FeatureSpec, what: str, dimensions: Sequence[int], *, hint: str) -> InvalidRequest:
    """Return the error of arrays that have not; what: begins the sentence."""
    return InvalidRequest(
        f"{what} the dimensions {list(dimensions)}, but the model was trained on images of"
        f" {list(spec.stored_shape)}",
        hint=hint,
    )


def learned_from(spec: FeatureSpec) -> str:
    """Return the model's columns, for a sentence."""
    names = ", ".join(spec.columns)
    return f"the column {names}" if len(spec.columns) == 1 else f"the columns {names}"


def _kind(spec: FeatureSpec) -> str:
    if spec.is_file:
        return "images in files"
    if spec.encodings:
        return "numbers, texts or times"
    return "images" if spec.kind == "image" else f"arrays of {spec.source_shape[0]:,} elements"


def _require_same_kind(spec: FeatureSpec, place: int, column: Column) -> None:
    """Refuse texts or times where the model learned from numbers, and the like.  Raises InvalidRequest."""
    encoding = spec.encoding_of(place)
    if isinstance(encoding, Categories):
        learned, type_name = _TEXTS, "text"
    elif encoding.time:
        # As those of one type alone: what seconds another one's stand for depends on the time zone.
        learned, type_name = _times(encoding.time), encoding.time
    else:
        learned, type_name = _NUMBERS, "float8"
    holds = _times(column.time) if column.time else _NUMBERS
    if column.form is Form.TEXT:
        holds = _TEXTS
    if holds != learned:
        raise InvalidRequest(
            f'column "{column.name}" holds {holds}, and the model learned from {learned} there',
            hint=f"Give a view in which it is of type {type_name}.",
        )


def _times(type_name: str) -> str:
    return f"times of type {type_name}"


def _require_dimensions(spec: FeatureSpec, column: Column, dimensions: tuple[int, ...]) -> None:
    have, want = int(np.prod(dimensions)), int(np.prod(spec.source_shape))
    if have != want:
        raise InvalidRequest(
            f'arrays of column "{column.name}" have {have:,} elements, but the model was trained on {want:,}',
            hint=_OTHER_SOURCE,
        )
    if not has_dimensions(spec, dimensions):
        raise other_dimensions(
            spec,
            f'arrays of column "{column.name}" have',
            dimensions,
            hint="Name a source whose arrays have these in this order, or are flat.",
        )
