"""Better plans of jobs that run: when they are looked for, and what comes between."""

import pytest

from tensile_db.worker.messages import (
    DriftDetected,
    Improve,
    ImprovementMade,
    JobEnded,
    JobId,
    MemoryFreed,
    NothingBetter,
    PlanningId,
    Reason,
    RefuseJob,
    ShutdownAsked,
    StopAsked,
    StopJob,
    StopReason,
)
from tests.played.told_worker import A, B, C, Worker, asks, hand, share, start


def improve(*jobs, planning):
    return Improve(jobs=jobs, planning=PlanningId(planning))


def better(planning, *, improvable=(), **budgets):
    shares = tuple((JobId("_ABC".index(name)), share(name, nbytes)) for name, nbytes in budgets.items())
    return ImprovementMade(planning=PlanningId(planning), shares=shares, improvable=improvable)


@pytest.fixture
def improving(one_running: Worker) -> Worker:
    """A's plan was made at once for B, which runs now; a better one is looked for."""
    one_running.ready(B)
    one_running.plans(2, A=50, B=30, improvable=(A,))
    assert one_running.adopted(A, 2) == []
    assert one_running.adopted(B, 2) == [improve(A, planning=3)]
    return one_running


def test_a_better_plan_is_handed_out_and_no_further_one_is_looked_for(improving: Worker) -> None:
    assert improving.tell(better(3, A=45)) == [hand("A", 3, 45)]
    assert improving.adopted(A, 3) == []


def test_where_none_is_better_nothing_is_handed_out_and_none_is_looked_for_again(improving: Worker) -> None:
    assert improving.tell(NothingBetter(planning=PlanningId(3))) == []
    assert improving.tell(DriftDetected(job=A)) == [asks(4, (A, Reason.DRIFT), (B, Reason.DRIFT))]
    assert improving.plans(4) == []


def test_a_better_plan_takes_no_memory_from_anybody(improving: Worker) -> None:
    assert improving.tell(better(3, A=71)) == []
    assert improving.state.shares[A] == share("A", 50)


def test_an_arrival_does_not_wait_for_a_better_plan_which_is_looked_for_anew_then(improving: Worker) -> None:
    assert improving.ready(C) == [asks(4, (A, Reason.ARRIVAL), (B, Reason.ARRIVAL), (C, Reason.COLD_START))]
    assert improving.tell(better(3, A=45)) == []
    assert improving.plans(4, A=40, C=20, improvable=(A, B)) == [hand("A", 4, 40), start("C", 4, 20)]
    assert improving.adopted(C, 4) == []
    assert improving.adopted(A, 4) == [improve(A, planning=5)]
    assert improving.tell(NothingBetter(planning=PlanningId(5))) == [improve(B, planning=6)]


def test_a_better_plan_found_while_others_wait_is_handed_out_if_the_job_keeps_its_plan(
    improving: Worker,
) -> None:
    improving.ready(C)
    assert improving.tell(better(3, A=45)) == []
    assert improving.plans(4, C=20, improvable=(A,)) == [start("C", 4, 20)]
    assert improving.adopted(C, 4) == [hand("A", 3, 45)]
    assert improving.adopted(A, 3) == []


def test_a_better_plan_is_still_looked_for_while_others_are_planned(improving: Worker) -> None:
    improving.tell(DriftDetected(job=A))
    assert improving.plans(4, improvable=(A,)) == []
    assert improving.tell(better(3, A=45)) == [hand("A", 3, 45)]
    assert improving.adopted(A, 3) == []


def test_an_arrival_that_is_refused_leaves_the_better_plan_to_be_looked_for(improving: Worker) -> None:
    improving.ready(C)
    assert improving.infeasible(4) == [asks(5, (C, Reason.COLD_START), trial=True)]
    assert improving.infeasible(5) == [RefuseJob(job=C, needed_nbytes=120, budget_nbytes=100)]
    assert improving.tell(better(3, A=45)) == [hand("A", 3, 45)]


def test_a_job_that_ends_has_no_use_for_a_better_plan(improving: Worker) -> None:
    assert improving.tell(JobEnded(job=A)) == [asks(4, (B, Reason.DEPARTURE))]
    assert improving.tell(better(3, A=45)) == []


def test_a_job_that_pauses_has_no_use_for_a_better_plan(improving: Worker) -> None:
    paused = StopAsked(job=A, reason=StopReason.PAUSED)
    assert improving.tell(paused) == [StopJob(job=A, reason=StopReason.PAUSED)]
    assert improving.tell(better(3, A=45)) == []
    assert improving.tell(MemoryFreed(job=A)) == [asks(4, (B, Reason.DEPARTURE))]


def test_what_another_job_holds_until_it_has_stopped_is_not_taken_for_a_better_plan(
    improving: Worker,
) -> None:
    improving.tell(StopAsked(job=B, reason=StopReason.PAUSED))
    assert improving.tell(better(3, A=71)) == []
    assert improving.state.shares[A] == share("A", 50)


def test_a_worker_that_shuts_down_looks_for_no_better_plans(improving: Worker) -> None:
    improving.tell(ShutdownAsked())
    assert improving.tell(better(3, A=45)) == []
    assert improving.tell(NothingBetter(planning=PlanningId(3))) == []


@pytest.fixture
def in_quick_lanes(one_running: Worker) -> Worker:
    """B came beside A, whose plan and share nobody looked at; better lanes are looked for."""
    one_running.ready(B)
    assert one_running.plans(2, B=10, improvable=(B,), quick_lanes=True) == [start("B", 2, 10)]
    assert one_running.adopted(B, 2) == [improve(A, B, planning=3)]
    return one_running


def test_better_lanes_come_before_better_plans_for_them(in_quick_lanes: Worker) -> None:
    found = better(3, A=40, B=50, improvable=(A,))
    assert in_quick_lanes.tell(found) == [hand("A", 3, 40), hand("B", 3, 50)]
    assert in_quick_lanes.adopted(A, 3) == []
    # The plan that B had when its lane was chosen is in force no more.
    assert in_quick_lanes.adopted(B, 3) == [improve(A, planning=4)]
    assert in_quick_lanes.tell(NothingBetter(planning=PlanningId(4))) == []


def test_where_no_lanes_are_better_plans_are_improved_for_those_in_force(in_quick_lanes: Worker) -> None:
    assert in_quick_lanes.tell(NothingBetter(planning=PlanningId(3))) == [improve(B, planning=4)]


def test_better_lanes_take_no_memory_that_is_not_theirs(in_quick_lanes: Worker) -> None:
    shares = dict(in_quick_lanes.state.shares)
    assert in_quick_lanes.tell(better(3, A=60, B=50)) == [improve(B, planning=4)]
    assert in_quick_lanes.state.shares == shares


def test_lanes_are_still_improved_after_a_better_plan_that_was_under_way_before(improving: Worker) -> None:
    improving.ready(C)
    # A keeps its plan, and so what is looked for since before C came is of use.
    assert improving.plans(4, C=20, quick_lanes=True) == [start("C", 4, 20)]
    assert improving.adopted(C, 4) == []
    assert improving.tell(better(3, A=45)) == [hand("A", 3, 45)]
    assert improving.adopted(A, 3) == [improve(A, B, C, planning=5)]


def test_new_plans_call_better_lanes_off_whoever_they_are_for(in_quick_lanes: Worker) -> None:
    in_quick_lanes.tell(DriftDetected(job=A))
    assert in_quick_lanes.plans(4) == []
    assert in_quick_lanes.tell(better(3, A=40, B=50)) == []


def test_lanes_are_not_improved_of_jobs_one_of_which_has_ended(in_quick_lanes: Worker) -> None:
    assert in_quick_lanes.tell(JobEnded(job=B)) == [asks(4, (A, Reason.DEPARTURE))]
    assert in_quick_lanes.tell(better(3, A=40, B=50)) == []
