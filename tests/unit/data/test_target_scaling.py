"""Numbers to predict: standardised, and back."""

import numpy as np
import pytest

from tensile_db.data.columns import Column, Form
from tensile_db.data.target_scaling import TargetScaling, find_scaling, read_numbers
from tensile_db.errors import BadData, InvalidRequest

PRICE = Column(name="price", form=Form.FIXED, wire=">f8")


def _texts(scaling, *outputs):
    return scaling.texts(np.array(outputs, np.float32))


def test_standardised_numbers_have_mean_0_and_deviation_1():
    values = np.array([100_000.0, 200_000.0, 300_000.0, 400_000.0])
    scaling = find_scaling(values)
    assert scaling.mean == 250_000
    assert scaling.scale == pytest.approx(111_803.39887498948, rel=1e-15)
    assert scaling.standardise(values).tolist() == pytest.approx(
        [-1.3416407865, -0.4472135955, 0.4472135955, 1.3416407865]
    )


def test_small_differences_of_large_numbers_survive():
    # float32 cannot tell these apart.
    scaling = find_scaling(np.array([1e12, 1e12 + 1, 1e12 + 2]))
    assert scaling == TargetScaling(mean=1e12 + 1, scale=pytest.approx(0.816496580927726, rel=1e-12))


def test_deviations_whose_squares_vanish_are_found():
    scaling = find_scaling(np.array([-3e-200, 3e-200]))
    assert scaling == TargetScaling(mean=0.0, scale=3e-200)


@pytest.mark.parametrize("constant", [0.0, 0.1, -7e30])
def test_a_constant_is_only_shifted(constant):
    scaling = find_scaling(np.full(7, constant))
    assert scaling == TargetScaling(mean=constant, scale=1.0)
    assert scaling.standardise(np.array([constant])).tolist() == [0.0]


def test_predictions_come_back_in_the_targets_unit_with_the_digits_that_are_known():
    scaling = TargetScaling(mean=200_000.0, scale=50_000.0)
    assert _texts(scaling, 0.0, 1.0, -1.5, 0.1) == ["200000.0", "250000.0", "125000.0", "205000.0001"]


def test_a_prediction_beyond_all_numbers_says_so():
    assert _texts(TargetScaling(mean=1.0, scale=2.0), np.inf, np.nan) == ["inf", "nan"]


def test_a_target_that_was_learned_as_it_is_gives_the_output():
    assert _texts(TargetScaling(mean=0.0, scale=1.0), 1234.5677, 1e-12) == ["1234.5677", "1e-12"]


def test_a_scaling_round_trips_and_says_which_format_it_has():
    scaling = TargetScaling(mean=1.5, scale=0.25)
    assert scaling.to_json() == {"format": 1, "mean": 1.5, "scale": 0.25}
    assert TargetScaling.from_json(scaling.to_json()) == scaling
    with pytest.raises(InvalidRequest, match="format 2, but this version reads 1"):
        TargetScaling.from_json({"format": 2, "mean": 1.5, "scale": 0.25})


@pytest.mark.parametrize(
    ("bad", "what"),
    [(np.nan, "nan$"), (np.inf, "inf$"), (-1e39, r"-1e\+39, which float32 has no number for$")],
)
def test_what_is_no_number_is_refused_and_its_row_named(bad, what):
    with pytest.raises(BadData, match=f'^column "price" of row id=12 holds {what}'):
        read_numbers(np.array([1.0, 2.0, bad]), PRICE, lambda row: f"id={row + 10}")


def test_numbers_keep_the_digits_that_float32_would_round():
    assert read_numbers(np.array([16_777_217], np.int64), PRICE, str).tolist() == [16_777_217.0]
