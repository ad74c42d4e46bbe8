"""Jobs that serve models beside jobs that train: their lanes, and whose state leaves the device."""

from dataclasses import replace

import pytest

from tensile_db.scheduler.sharing.demand import Demand
from tensile_db.scheduler.sharing.laning import balanced, grants, with_serving
from tensile_db.scheduler.sharing.serving import LATELY_NS
from tests.graphs.hand_made import device_of


def demand(job, *, state=10, least=20, wanted=60, time_ns=1000, unused_ns=None):
    return Demand(
        job_id=job,
        state_nbytes=state,
        least_nbytes=least,
        wanted_nbytes=wanted,
        time_ns=time_ns,
        busy=1.0,
        unused_ns=unused_ns,
    )


def model(job, *, unused_ns=0, **sizes):
    return demand(job, **({"state": 10, "least": 12, "wanted": 15} | sizes), unused_ns=unused_ns)


TRAINING = demand(1)
FIRST, SECOND, THIRD = model(2, unused_ns=3), model(3, unused_ns=2), model(4, unused_ns=1)
IDLE = model(5, unused_ns=LATELY_NS)


def lanes(demands, memory, at_work=(TRAINING,), count=1):
    return with_serving(demands, balanced(at_work, count), device_of(memory))


def test_where_memory_is_ample_models_are_served_in_a_lane_apart():
    # 60 for the training, 5 beyond their states for the models, of which none need stay.
    assert lanes([TRAINING, FIRST, SECOND], 65) == {1: 0, 2: 1, 3: 1}


def test_where_it_is_not_a_row_waits_for_the_shortest_iteration():
    long, short = demand(1, time_ns=90), demand(6, time_ns=30)
    assert lanes([long, short, FIRST], 40, (long, short), 2) == {1: 0, 6: 1, 2: 1}


def test_models_alone_have_one_lane():
    assert lanes([FIRST, SECOND], 30, ()) == {2: 0, 3: 0}


def test_a_model_that_nobody_uses_takes_no_lane_from_the_others():
    assert lanes([TRAINING, IDLE], 64) == {1: 0, 5: 0}
    assert lanes([TRAINING, replace(IDLE, unused_ns=0)], 64) == {1: 0, 5: 1}


@pytest.mark.parametrize(
    # The first state that leaves makes the lane larger, by as much as it gives.
    ("memory", "staying"),
    [(65, {1, 2, 3, 4}), (64, {1, 4}), (45, {1}), (44, set())],
)
def test_the_model_that_was_used_longest_ago_leaves_first_and_a_training_last(memory, staying):
    demands = [TRAINING, FIRST, SECOND, THIRD]
    granted = grants(demands, {1: 0, 2: 1, 3: 1, 4: 1}, device_of(memory))
    assert {job for job, grant in granted.items() if grant.stays} == staying


@pytest.mark.parametrize(("memory", "staying"), [(23, {2, 3, 5}), (22, set())])
def test_where_only_models_are_served_all_stay_or_none_whoever_is_used(memory, staying):
    # 30 for the states, and 2 to 5 for a turn.
    for one in (IDLE, replace(IDLE, unused_ns=0)):
        granted = grants([FIRST, SECOND, one], {2: 0, 3: 0, 5: 0}, device_of(memory + 10))
        assert {job for job, grant in granted.items() if grant.stays} == staying


def test_models_in_use_leave_in_an_order_that_does_not_change_with_each_row():
    staying = []
    for unused in ((3, 2, 1), (1, 2, 3)):
        models = [model(job, unused_ns=ns) for job, ns in zip((2, 3, 4), unused, strict=True)]
        granted = grants([TRAINING, *models], {1: 0, 2: 1, 3: 1, 4: 1}, device_of(64))
        staying.append({job for job, grant in granted.items() if grant.stays})
    assert staying == [{1, 4}, {1, 4}]


def test_an_unused_model_leaves_before_anybody_else_has_less_than_it_wants():
    at_ease = 10 + 50 + 10 + 10 + 5
    for memory, staying in ((at_ease, {1, 2, 5}), (at_ease - 1, {1, 2})):
        granted = grants([TRAINING, FIRST, IDLE], {1: 0, 2: 1, 5: 1}, device_of(memory))
        assert {job for job, grant in granted.items() if grant.stays} == staying


def test_jobs_fit_together_whenever_each_would_alone_models_too():
    demands = [TRAINING, *(model(n, state=18, least=20) for n in range(2, 40))]
    granted = grants(demands, lanes(demands, 20), device_of(20))
    assert not any(grant.stays for grant in granted.values())
