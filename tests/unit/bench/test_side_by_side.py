"""Equal jobs without lanes, beside those with lanes: what their plans hold, and how long they take."""

import pytest

from tensile_db.bench.points import subject
from tensile_db.bench.queueing.side_by_side import GOALS, PLANNED, run, side_by_side
from tests.graphs.hand_made import chain, device_of

GRAPH = chain(state_nbytes=8)
#: A byte takes a nanosecond over the link.
DEVICE = device_of(1)
JOB = subject(GRAPH, DEVICE)
ITERATIONS = 5


def found(policy, share, jobs=2):
    return side_by_side(JOB, jobs, share, policy, DEVICE, ITERATIONS)


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_threads_of_pytorch_take_as_long_as_serial_in_all_their_memory(jobs):
    assert found("vanilla", 0.2, jobs) | {"at_one_time": 1.0} == {
        "peak": 1.0,
        "at_one_time": 1.0,
        "makespan": 1.0,
    }


def test_a_policy_that_heeds_no_budget_takes_what_it_takes():
    tight, ample = found("checkpoint", 0.1), found("checkpoint", 0.9)
    assert tight == ample
    assert tight["peak"] > 0.1


@pytest.mark.parametrize("policy", ["tensile", "auto"])
def test_a_policy_with_a_budget_keeps_to_it_and_pays_for_it(policy):
    ample, tight = found(policy, 1.0), found(policy, 0.85)
    assert ample["makespan"] == 1.0
    assert tight["at_one_time"] <= tight["peak"] <= 0.85
    assert tight["makespan"] > 1.0


@pytest.mark.parametrize(("jobs", "share"), [(1, 0.7), (2, 0.7), (2, 0.3), (8, 0.7), (8, 0.05)])
def test_what_does_not_fit_says_what_all_jobs_need_also_where_not_one_of_them_fits(jobs, share):
    least = round(JOB.least_nbytes / JOB.eager_peak_nbytes, 4)
    assert least == 0.8027
    assert found("tensile", share, jobs) == {"needed": least}


def test_a_policy_that_cannot_plan_such_a_graph_says_so():
    assert "refused" in found("vdnn_conv", 0.5)


@pytest.mark.slow
def test_every_case_has_a_row_of_each_policy_but_those_that_are_left_out():
    rows = run({"vgg16": JOB}, DEVICE, ITERATIONS)
    cases = [(row["network"], row["policy"], row["jobs"], row["share"]) for row in rows]
    assert cases == [("vgg16", policy, *case) for policy in PLANNED for case in GOALS]
    assert {"vanilla", "tensile", "capuchin", "auto"} < set(PLANNED)
    assert {"tsplit", "auto_split"}.isdisjoint(PLANNED)


def test_rows_are_the_same_in_every_run():
    wanted = {"policies": ("tensile", "checkpoint")}
    assert run({"vgg16": JOB}, DEVICE, 3, **wanted) == run({"vgg16": JOB}, DEVICE, 3, **wanted)
