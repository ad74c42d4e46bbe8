"""When a worker takes what another leaves."""

import pytest

from tensile_db.worker.patience import Patience, Since


@pytest.fixture
def patience():
    return Patience(grace_s=1.0)


#: Worker 2's sign of life.
BEATS = {2: "first", 3: "first"}


def test_a_job_is_left_to_its_worker_for_the_grace_time(patience):
    assert not patience.see([(7, 2)], BEATS, now_s=10.0)
    assert not patience.see([(7, 2)], BEATS, now_s=10.9)
    assert patience.passed_over(BEATS) == set()
    assert patience.see([(7, 2), (8, 3)], BEATS, now_s=11.0)
    assert patience.passed_over(BEATS) == {2}


def test_the_time_runs_for_each_job_and_worker_apart(patience):
    assert not patience.see([(7, 2)], BEATS, now_s=10.0)
    assert not patience.see([(7, 3)], BEATS, now_s=11.0)
    assert not patience.see([(8, 3)], BEATS, now_s=12.0)
    # It was taken, and has come back.
    assert not patience.see([], BEATS, now_s=12.5)
    assert not patience.see([(8, 3)], BEATS, now_s=13.0)


def test_a_sign_of_life_brings_trust_back(patience):
    patience.see([(7, 2)], BEATS, now_s=10.0)
    patience.see([(7, 2)], BEATS, now_s=20.0)
    assert patience.passed_over(BEATS) == {2}
    assert patience.passed_over(BEATS | {2: "second"}) == set()
    assert patience.passed_over(BEATS) == set()


def test_who_is_gone_is_forgotten(patience):
    patience.see([(7, 2)], BEATS, now_s=10.0)
    patience.see([(7, 2)], BEATS, now_s=20.0)
    assert patience.passed_over({3: "first"}) == set()


def test_what_is_seen_at_every_look_counts_from_the_first():
    since = Since()
    assert since.look(["a"], now_s=0.0, for_s=5.0) == set()
    assert since.look(["a", "b"], now_s=5.0, for_s=5.0) == {"a"}
    assert since.look(["b"], now_s=9.0, for_s=5.0) == set()
    assert since.look(["a", "b"], now_s=10.0, for_s=5.0) == {"b"}
