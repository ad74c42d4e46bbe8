"""Columns of another kind than a model learned from are refused."""

from dataclasses import replace

import numpy as np
import pytest

from tensile_db.data.as_trained import as_kept, require_as_trained
from tensile_db.data.columns import Column, Form, Variable
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.errors import InvalidRequest


def _vector(*columns, elements):
    return FeatureSpec(
        kind="vector",
        columns=columns,
        source_shape=(elements,),
        raw=True,
        size=(),
        channels=0,
        mean=(0.0,) * elements,
        scale=(1.0,) * elements,
    )


def _image(shape, *, raw, channels_first=False):
    return FeatureSpec(
        kind="image",
        columns=("v",),
        source_shape=shape,
        raw=raw,
        channels_first=channels_first,
        size=shape[:2],
        channels=shape[2],
        mean=(0.0,) * shape[2],
        scale=(1.0,) * shape[2],
    )


NUMBER, NUMBERS, ARRAYS = _vector("v", elements=1), _vector("v", "w", elements=2), _vector("v", elements=4)
PLANES, GREY = _image((8, 8, 3), raw=True, channels_first=True), _image((8, 8, 1), raw=True)
FILES, PIXELS = _image((8, 8, 3), raw=False), _image((8, 8, 3), raw=True)


def _given(spec, kind):
    """Return columns of the model's names, and their values: files, numbers, or arrays of some dimensions."""
    if kind == "files":
        values = Variable(data=np.zeros(2, np.uint8), offsets=np.array([0, 1, 2]))
        return [Column(name="v", form=Form.BYTES)], [values]
    if kind == "numbers":
        columns = [Column(name=name, form=Form.FIXED, wire=">f8") for name in spec.columns]
        return columns, [np.zeros(2) for _ in columns]
    return [Column(name="v", form=Form.ARRAY, wire=">f8")], [np.zeros((2, *kind))]


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        (NUMBER, "files", "the model learned from the column v, not from images"),
        (ARRAYS, "files", "the model learned from the column v, not from images"),
        (
            ARRAYS,
            "numbers",
            "the model learned from the column v, arrays of 4 elements, and not from numbers",
        ),
        (ARRAYS, (5,), 'arrays of column "v" have 5 elements, but the model was trained on 4'),
        (NUMBER, (2,), 'arrays of column "v" have 2 elements, but the model was trained on 1'),
        (FILES, "numbers", "the model learned from the column v, images in files, and not from numbers"),
        (FILES, (192,), "the model learned from the column v, images in files, and not from arrays"),
        # It was never trained on arrays of any length.
        (FILES, (10,), "the model learned from the column v, images in files, and not from arrays"),
        (PIXELS, "numbers", "the model learned from the column v, images, and not from numbers"),
        (PIXELS, (10,), 'arrays of column "v" have 10 elements, but the model was trained on 192'),
    ],
)
def test_columns_of_another_kind_are_refused(spec, kind, message):
    with pytest.raises(InvalidRequest) as refusal:
        require_as_trained(spec, *_given(spec, kind))
    assert refusal.value.message == message
    assert refusal.value.hint == "Name a source whose rows are like those of the training."


@pytest.mark.parametrize(
    ("spec", "kind", "shape"),
    [
        (PIXELS, (3, 8, 8), [8, 8, 3]),
        (PIXELS, (24, 8), [8, 8, 3]),
        (PIXELS, (2, 4, 24), [8, 8, 3]),
        (PLANES, (8, 8, 3), [3, 8, 8]),
        (GREY, (4, 16), [8, 8, 1]),
    ],
)
def test_arrays_whose_dimensions_are_not_those_of_the_images_are_refused(spec, kind, shape):
    with pytest.raises(InvalidRequest) as refusal:
        require_as_trained(spec, *_given(spec, kind))
    assert refusal.value.message == (
        f'arrays of column "v" have the dimensions {list(kind)}, but the model was trained'
        f" on images of {shape}"
    )
    assert refusal.value.hint == "Name a source whose arrays have these in this order, or are flat."


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (NUMBER, "numbers"),
        (NUMBERS, "numbers"),
        # An array of one element may be what it learned from.
        (NUMBER, (1,)),
        (ARRAYS, (4,)),
        (ARRAYS, (2, 2)),
        (FILES, "files"),
        (PIXELS, "files"),
        (PIXELS, (192,)),
        (PIXELS, (8, 8, 3)),
        # Rows of pixels, or pixels, with their channels side by side.
        (PIXELS, (8, 24)),
        (PIXELS, (64, 3)),
        (PLANES, (3, 8, 8)),
        (PLANES, (3, 64)),
        (GREY, (8, 8)),
        (GREY, (1, 8, 8)),
        (GREY, (64,)),
    ],
)
def test_columns_like_the_models_are_taken(spec, kind):
    require_as_trained(spec, *_given(spec, kind))


@pytest.mark.parametrize(
    ("dtypes", "kept"),
    [(("bool",), np.bool_), (("float64",), np.bool_), (("uint8",), np.uint8), ((), np.uint8)],
)
def test_truth_values_are_bytes_to_images_of_models_that_were_trained_on_such(dtypes, kept):
    values = np.array([[True, False, True, True]])
    found = as_kept(replace(_image((2, 2, 1), raw=True), dtypes=dtypes), values)
    assert found.dtype == kept
    assert found.tolist() == values.tolist()
    number = np.array([[0.5, 0, 0, 0]])
    assert as_kept(replace(_image((2, 2, 1), raw=True), dtypes=dtypes), number) is number
