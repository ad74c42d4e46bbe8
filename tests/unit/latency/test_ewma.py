import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile_db.latency.ewma import LatencyAverage


def test_before_any_sample_the_prediction_stands():
    average = LatencyAverage([100, 200])
    assert average.average_ns == (100, 200)
    assert average.latest_ns == (None, None)
    assert average.drift() == 0.0


def test_the_first_sample_replaces_the_prediction_and_later_ones_are_averaged():
    average = LatencyAverage([100, 200])
    average.sample([40, None])
    assert average.average_ns == (40, 200)
    average.sample([80, 240])
    assert average.average_ns == (50, 240)
    assert average.latest_ns == (80, 240)


def test_drift_is_the_relative_change_of_the_sum_since_the_plan():
    average = LatencyAverage([100, 300])
    average.sample([200, 400])
    assert average.drift() == pytest.approx(0.5)
    average.planned(average.average_ns)
    assert average.drift() == 0.0


def test_a_sample_surprises_by_what_lies_between_it_and_the_averages():
    average = LatencyAverage([100, 100])
    assert average.surprise() == 0.0
    average.sample([100, None])
    assert average.surprise() == 0.0
    # Averages of the one that was measured: 100, then 110.
    average.sample([140, None])
    assert average.surprise() == pytest.approx(30 / 110)


@given(first=st.integers(0, 10**9), later=st.lists(st.integers(0, 10**9), max_size=20))
def test_an_average_stays_between_the_samples(first, later):
    average = LatencyAverage([5])
    for sample in [first, *later]:
        average.sample([sample])
    assert min([first, *later]) <= average.average_ns[0] <= max([first, *later])
