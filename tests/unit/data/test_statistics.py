"""Mean and deviation of numbers of any size, and what standardising by them makes of rows."""

import numpy as np
import pytest

from tensile_db.data.columns import Column, Form
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import batch, prepare
from tensile_db.data.layout import find_layout
from tensile_db.data.statistics import statistics
from tensile_db.errors import BadData

PLACES = np.arange(200)


def standardised(tmp_path, values):
    """Return what training makes of a column: the features of its rows, and whether it is constant."""
    column = Column(name="x", form=Form.FIXED, wire=values.dtype.str)
    layout = find_layout([column], [values], wants_images=False, raw_shape=None, row_name=str)
    made = prepare(layout, [values], size=None, path=tmp_path / "features.npy", row_name=str)
    mean, scale, is_constant = statistics(made, np.arange(len(values)))
    spec = FeatureSpec(
        kind="vector",
        columns=("x",),
        source_shape=layout.shape,
        raw=True,
        size=(),
        channels=0,
        mean=mean,
        scale=scale,
    )
    return batch(made, np.arange(len(values)), spec)[:, 0], is_constant[0]


@pytest.mark.parametrize(
    "values",
    [
        (PLACES - 100) * 1e-15,
        (PLACES - 100) * 1e-200,
        3.0 + PLACES * 4.440892098500626e-16,
        1_700_000_000_000_000_000 + PLACES * 1000,
        -(2.0**200) + PLACES * 2.0**150,
        ((PLACES - 100) * 2.0**-140).astype(np.float32),
    ],
    ids=["small", "squares vanish", "neighbours", "nanoseconds", "large", "float32"],
)
def test_numbers_are_standardised_down_to_what_float64_can_tell_apart(tmp_path, values):
    found, is_constant = standardised(tmp_path, values)
    assert not is_constant
    assert found == pytest.approx((PLACES - 99.5) / PLACES.std(), abs=0.01)


@pytest.mark.parametrize("constant", [0.0, 0.1, 1e300, -1e-300, 1.7e18])
def test_constants_become_zero(tmp_path, constant):
    found, is_constant = standardised(tmp_path, np.full(100_003, constant))
    assert is_constant
    assert not found.any()


def test_an_outlier_that_float64_cannot_square_is_told():
    made = np.array([[1.0, 1.0], [1e300, 1.0]])
    mean, scale, is_constant = statistics(made, np.arange(2))
    assert not np.isfinite(scale[0])
    assert (mean[1], scale[1], is_constant) == (1.0, 1.0, (False, True))


def test_of_several_columns_each_has_its_own():
    made = np.stack([PLACES * 1e-20, PLACES * 1.0, np.full(200, 7.0)], axis=1)
    mean, scale, is_constant = statistics(made, PLACES)
    assert mean == pytest.approx((99.5e-20, 99.5, 7.0), rel=1e-12)
    assert scale == pytest.approx((PLACES.std() * 1e-20, PLACES.std(), 1.0), rel=1e-12)
    assert is_constant == (False, False, True)


def test_channels_of_images_have_theirs():
    random = np.random.default_rng(3)
    pixels = random.random((6, 3, 4, 5)).astype(np.float32) * np.float32(1e-20)
    pixels[:, 1] = 0.25
    mean, scale, is_constant = statistics(pixels, np.arange(6))
    exact = pixels.astype(np.float64)
    assert mean == pytest.approx(exact.mean(axis=(0, 2, 3)), rel=1e-9)
    assert scale == pytest.approx((exact[:, 0].std(), 1.0, exact[:, 2].std()), rel=1e-9)
    assert is_constant == (False, True, False)


def test_pixels_that_are_bytes_are_constant_where_all_are_one():
    pixels = np.full((5, 2, 3, 3), 255, np.uint8)
    pixels[2, 1, 0, 0] = 254
    mean, scale, is_constant = statistics(pixels, np.arange(5))
    assert (mean[0], scale[0], is_constant) == (255.0, 1.0, (True, False))
    assert scale[1] == pytest.approx(pixels[:, 1].std())


def test_a_row_far_from_those_of_a_small_deviation_is_refused():
    spec = FeatureSpec(
        kind="vector",
        columns=("x",),
        source_shape=(1,),
        raw=True,
        size=(),
        channels=0,
        mean=(0.0,),
        scale=(1e-200,),
    )
    with pytest.raises(BadData, match='"x" of row 0 holds NaN or a number out of range'):
        batch(np.array([[1.0]]), np.array([0]), spec, str)
