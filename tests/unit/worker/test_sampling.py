"""Iterations whose latencies are sampled: soon, then every tenth, and seldom where others are replayed."""

from tensile_db.worker.jobs.sampling import Sampling


def due(sampling, iterations, *, replaying):
    """Return which of so many iterations are sampled, counted from 1."""
    return [number for number in range(1, iterations + 1) if sampling.count(replaying=replaying)]


def test_op_by_op_the_first_ones_but_two_and_then_every_tenth_are_sampled():
    assert due(Sampling(), 35, replaying=False) == [3, 4, 5, 10, 20, 30]


def test_between_replayed_ones_the_time_until_the_next_doubles_up_to_a_limit():
    sampling = Sampling()
    assert due(sampling, 5, replaying=False) == [3, 4, 5]
    found = due(sampling, 20_000, replaying=True)
    assert found == [300, 900, 2100, 4500, 9300, 14100, 18900]


def test_by_another_plan_it_begins_anew():
    sampling = Sampling()
    due(sampling, 5, replaying=False)
    assert due(sampling, 1000, replaying=True) == [300, 900]
    sampling.planned()
    assert due(sampling, 1000, replaying=True) == [300, 900]


def test_where_latencies_have_changed_the_next_one_comes_soon():
    sampling = Sampling()
    due(sampling, 5, replaying=False)
    assert due(sampling, 2100, replaying=True) == [300, 900, 2100]
    sampling.soon()
    assert due(sampling, 1000, replaying=True) == [300, 900]
