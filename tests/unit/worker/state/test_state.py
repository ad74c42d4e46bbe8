"""The worker's decisions, one situation a test."""

import pytest

from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.worker.messages import (
    Claim,
    ClaimedJob,
    DriftDetected,
    Exit,
    Explain,
    FailJob,
    HoldJob,
    JobEnded,
    JobId,
    JobPrepared,
    MemoryFreed,
    PlanningFailed,
    PlanningId,
    Prepare,
    PrioritiesRead,
    Reason,
    RefuseJob,
    ReturnJob,
    ShutdownAsked,
    StopAsked,
    StopJob,
    StopReason,
    Tick,
    UseChanged,
)
from tests.played.told_worker import A, B, C, Worker, asks, hand, share, start

#: What a worker claims whose places are all taken.
FULL = Claim(limit=1, only_serving=True)


def test_a_claimed_job_is_prepared_then_planned_then_started(worker: Worker) -> None:
    assert worker.claim(ClaimedJob(id=A, priority=0)) == [Prepare(job=A)]
    assert worker.tell(JobPrepared(job=A)) == [asks(1, (A, Reason.COLD_START))]
    assert worker.plans(1, A=80) == [start("A", 1, 80)]
    assert needed_nbytes(worker.state.shares.values()) == 80


def test_an_empty_claim_is_not_repeated_before_the_next_tick(worker: Worker) -> None:
    worker.claim()
    assert worker.claims == [Claim(limit=8)]
    worker.tell(Tick())
    assert worker.claims == [Claim(limit=8), Claim(limit=8)]


def test_where_jobs_were_found_more_are_looked_for(worker: Worker) -> None:
    worker.claim(ClaimedJob(id=A, priority=0))
    assert worker.claims == [Claim(limit=8), Claim(limit=7)]


def test_searches_leave_all_slots_to_their_trials() -> None:
    worker = Worker(max_jobs=1)
    assert worker.claim(ClaimedJob(id=A, priority=0, searches=True)) == [Prepare(job=A)]
    worker.claim(ClaimedJob(id=B, priority=0, searches=True))
    worker.claim()
    assert worker.claims == [Claim(limit=1)] * 3
    worker.tell(Tick())
    worker.claim(ClaimedJob(id=C, priority=0))
    worker.claim()
    assert worker.claims == [*[Claim(limit=1)] * 4, FULL]
    worker.tell(JobEnded(job=A))
    worker.claim()
    assert worker.claims == [*[Claim(limit=1)] * 4, FULL, FULL]
    worker.tell(JobEnded(job=C))
    assert worker.claims == [*[Claim(limit=1)] * 4, FULL, FULL, Claim(limit=1)]


def test_no_more_jobs_are_claimed_than_there_are_slots_but_those_that_serve() -> None:
    worker = Worker(max_jobs=1)
    worker.claim(ClaimedJob(id=A, priority=0))
    assert worker.claims == [Claim(limit=1), FULL]
    worker.claim(ClaimedJob(id=B, priority=0, serves=True))
    assert worker.claims == [Claim(limit=1), FULL, FULL]
    worker.claim()
    worker.tell(JobEnded(job=A))
    assert worker.claims == [Claim(limit=1), FULL, FULL, Claim(limit=1)]


def test_a_job_that_serves_is_first_in_line_and_waits_for_no_end() -> None:
    worker = Worker(alone=True)
    worker.ready(A)
    worker.plans(1, A=60)
    worker.adopted(A, 1)
    worker.ready(B)
    assert worker.claim(ClaimedJob(id=C, priority=-1, serves=True)) == [Prepare(job=C)]
    assert worker.tell(JobPrepared(job=C)) == [asks(2, (A, Reason.ARRIVAL), (C, Reason.COLD_START))]
    assert worker.plans(2, A=60, C=40) == [hand("A", 2, 60), start("C", 2, 40)]
    worker.adopted(A, 2)
    assert worker.adopted(C, 2) == []
    assert worker.state.in_line()[0].wait_reason.startswith("waits for the end of job 1")
    # Whoever serves keeps nobody waiting.
    assert worker.tell(JobEnded(job=A)) == [asks(3, (C, Reason.DEPARTURE), (B, Reason.COLD_START))]


def test_another_use_of_models_makes_new_plans(one_running: Worker) -> None:
    assert one_running.tell(UseChanged(job=A)) == [asks(2, (A, Reason.USE))]


def test_a_job_that_goes_on_from_a_checkpoint_says_so_in_its_plan(worker: Worker) -> None:
    worker.claim(ClaimedJob(id=A, priority=0, resumes=True))
    assert worker.tell(JobPrepared(job=A)) == [asks(1, (A, Reason.RESUME))]


def test_an_arrival_is_told_its_share_with_the_others_and_planned_again_when_all_have_theirs(
    one_running: Worker,
) -> None:
    assert one_running.ready(B) == [asks(2, (A, Reason.ARRIVAL), (B, Reason.COLD_START))]
    assert one_running.plans(2, A=60, B=40) == [hand("A", 2, 60), start("B", 2, 40)]
    assert one_running.ready(C) == []
    assert one_running.adopted(B, 2) == []
    assert one_running.adopted(A, 2) == [
        asks(3, (A, Reason.ARRIVAL), (B, Reason.ARRIVAL), (C, Reason.COLD_START))
    ]


def test_an_arrival_starts_at_once_beside_a_job_that_keeps_its_plan(one_running: Worker) -> None:
    one_running.ready(B)
    assert one_running.plans(2, B=20) == [start("B", 2, 20)]


def test_a_departure_gives_the_others_more_memory(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.plans(2, A=60, B=40)
    one_running.adopted(A, 2)
    one_running.adopted(B, 2)
    assert one_running.tell(JobEnded(job=B)) == [asks(3, (A, Reason.DEPARTURE))]
    assert one_running.plans(3, A=100) == [hand("A", 3, 100)]
    assert needed_nbytes(one_running.state.shares.values()) == 100


def test_drift_plans_all_running_jobs_again(one_running: Worker) -> None:
    assert one_running.tell(DriftDetected(job=A)) == [asks(2, (A, Reason.DRIFT))]


def test_drift_of_a_job_that_is_not_running_is_ignored(worker: Worker) -> None:
    worker.ready(A)
    assert worker.tell(DriftDetected(job=A)) == []


def test_a_job_that_fits_alone_but_not_now_waits_and_is_tried_at_the_next_departure(
    one_running: Worker,
) -> None:
    one_running.ready(B)
    assert one_running.infeasible(2) == [asks(3, (B, Reason.COLD_START), trial=True)]
    assert one_running.plans(3, B=90) == [
        HoldJob(
            job=B, wait_reason="waits for device memory: other jobs hold 80 B of 100 B, too much beside it"
        )
    ]
    assert one_running.tell(JobEnded(job=A)) == [asks(4, (B, Reason.COLD_START))]


def test_a_job_that_fits_not_even_alone_is_refused_with_the_least_that_would_do(
    one_running: Worker,
) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    assert one_running.infeasible(3, needed=111) == [RefuseJob(job=B, needed_nbytes=111, budget_nbytes=100)]


def test_a_refused_job_is_not_in_the_way_of_the_next(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.infeasible(3)
    assert one_running.ready(C) == [asks(4, (A, Reason.ARRIVAL), (C, Reason.COLD_START))]


def test_a_later_job_does_not_pass_one_that_waits_for_memory(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    assert one_running.ready(C) == [HoldJob(job=C, wait_reason="waits behind job 2, which is first in line")]


def test_a_job_of_higher_priority_passes_one_that_waits_for_memory(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    assert one_running.ready(C, priority=1) == [
        asks(4, (A, Reason.ARRIVAL), (C, Reason.COLD_START), (B, Reason.COLD_START))
    ]
    assert one_running.infeasible(4) == [asks(5, (A, Reason.ARRIVAL), (C, Reason.COLD_START))]


def raised(*priorities: tuple[JobId, int]) -> PrioritiesRead:
    return PrioritiesRead(priorities=priorities)


def test_a_job_raised_above_the_head_of_the_line_is_planned_first(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    one_running.ready(C)
    assert one_running.tell(raised((A, 0), (B, 0), (C, 1))) == [
        asks(4, (A, Reason.ARRIVAL), (C, Reason.COLD_START), (B, Reason.COLD_START))
    ]
    assert [job.id for job in one_running.state.in_line()] == [C, B]


def test_a_head_of_the_line_that_is_lowered_makes_way(one_running: Worker) -> None:
    one_running.ready(B, priority=1)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    one_running.ready(C)
    assert one_running.tell(raised((B, -1))) == [
        asks(4, (A, Reason.ARRIVAL), (C, Reason.COLD_START), (B, Reason.COLD_START))
    ]


def test_priorities_that_leave_the_line_as_it_is_change_nothing(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    one_running.ready(C)
    assert one_running.tell(raised((A, -3), (B, 2), (C, 1), (JobId(99), 9))) == []
    assert one_running.state.jobs[B].priority == 2


def test_the_line_moves_up_when_its_head_is_cancelled(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    one_running.ready(C)
    assert one_running.tell(StopAsked(job=B, reason=StopReason.CANCELLED)) == [
        StopJob(job=B, reason=StopReason.CANCELLED),
        asks(4, (A, Reason.ARRIVAL), (C, Reason.COLD_START)),
    ]


def test_a_cancelled_job_keeps_its_share_until_its_thread_is_over(one_running: Worker) -> None:
    assert one_running.tell(StopAsked(job=A, reason=StopReason.CANCELLED)) == [
        StopJob(job=A, reason=StopReason.CANCELLED)
    ]
    assert one_running.state.shares == {A: share("A", 80)}
    one_running.tell(JobEnded(job=A))
    assert one_running.state.shares == {}


def test_a_job_is_told_to_stop_only_once(one_running: Worker) -> None:
    one_running.tell(StopAsked(job=A, reason=StopReason.CANCELLED))
    assert one_running.tell(StopAsked(job=A, reason=StopReason.LEASE_LOST)) == []


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.SHUTDOWN, StopReason.LEASE_LOST])
def test_a_pause_is_overtaken_by_every_other_reason_to_stop_and_by_none_twice(
    one_running: Worker, reason: StopReason
) -> None:
    one_running.tell(StopAsked(job=A, reason=StopReason.PAUSED))
    assert one_running.tell(StopAsked(job=A, reason=StopReason.PAUSED)) == []
    assert one_running.tell(StopAsked(job=A, reason=reason)) == [StopJob(job=A, reason=reason)]
    assert one_running.tell(StopAsked(job=A, reason=StopReason.PAUSED)) == []
    assert one_running.tell(StopAsked(job=A, reason=reason)) == []


def test_a_paused_jobs_memory_is_the_others_before_its_thread_is_over(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    one_running.tell(StopAsked(job=A, reason=StopReason.PAUSED))
    assert one_running.tell(MemoryFreed(job=A)) == [asks(4, (B, Reason.COLD_START))]
    assert one_running.plans(4, B=90) == [start("B", 4, 90)]
    assert one_running.tell(JobEnded(job=A)) == []
    assert one_running.state.shares == {B: share("B", 90)}


def test_a_job_that_pauses_while_it_waits_makes_way(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    one_running.ready(C)
    assert one_running.tell(StopAsked(job=B, reason=StopReason.PAUSED)) == [
        StopJob(job=B, reason=StopReason.PAUSED),
        asks(4, (A, Reason.ARRIVAL), (C, Reason.COLD_START)),
    ]


def test_the_memory_of_a_job_that_is_done_is_the_others_while_its_model_is_written(
    one_running: Worker,
) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    assert one_running.tell(MemoryFreed(job=A)) == [asks(4, (B, Reason.COLD_START))]
    assert one_running.tell(DriftDetected(job=A)) == []
    assert one_running.tell(JobEnded(job=A)) == []


def test_plans_are_void_when_one_of_their_jobs_has_gone(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.tell(JobEnded(job=A))
    assert one_running.plans(2, A=60, B=40) == [asks(3, (B, Reason.COLD_START))]


def test_room_made_in_vain_goes_back_to_the_others(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.plans(2, A=60, B=40)
    assert one_running.tell(StopAsked(job=B, reason=StopReason.CANCELLED)) == [
        StopJob(job=B, reason=StopReason.CANCELLED)
    ]
    one_running.tell(JobEnded(job=B))
    assert one_running.adopted(A, 2) == [asks(3, (A, Reason.DEPARTURE))]


def test_news_of_an_older_plan_does_not_count_as_the_newest_taken_up(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.plans(2, A=60, B=40)
    one_running.adopted(B, 2)
    one_running.ready(C)
    assert one_running.adopted(A, 1) == []


def test_jobs_run_one_at_a_time_where_the_sharing_policy_says_so() -> None:
    worker = Worker(alone=True)
    worker.ready(A)
    worker.plans(1, A=10)
    worker.adopted(A, 1)
    assert worker.ready(B) == [
        HoldJob(job=B, wait_reason="waits for the end of job 1: this worker runs one job at a time")
    ]
    assert worker.ready(C) == [HoldJob(job=C, wait_reason="waits behind job 2, which is first in line")]
    assert worker.tell(DriftDetected(job=A)) == [asks(2, (A, Reason.DRIFT))]
    worker.plans(2, A=20)
    worker.adopted(A, 2)
    assert worker.tell(JobEnded(job=A)) == [asks(3, (B, Reason.COLD_START))]


def test_a_defect_in_planning_ends_only_the_job_that_it_cannot_plan(one_running: Worker) -> None:
    one_running.ready(B)
    assert one_running.tell(PlanningFailed(planning=PlanningId(2), message="boom")) == [
        asks(3, (B, Reason.COLD_START), trial=True)
    ]
    assert one_running.tell(PlanningFailed(planning=PlanningId(3), message="boom", hint="Ask for less.")) == [
        FailJob(job=B, message="boom", hint="Ask for less.")
    ]
    assert needed_nbytes(one_running.state.shares.values()) == 80


def test_a_failed_planning_leaves_running_jobs_their_plans(one_running: Worker) -> None:
    one_running.tell(DriftDetected(job=A))
    assert one_running.infeasible(2) == []


def test_an_explained_job_takes_no_memory_and_hears_of_its_neighbours(one_running: Worker) -> None:
    one_running.claim(ClaimedJob(id=B, priority=0, explains=True))
    assert one_running.tell(JobPrepared(job=B)) == [Explain(job=B, neighbours=(A,))]
    assert needed_nbytes(one_running.state.shares.values()) == 80


def test_a_shutdown_stops_every_job_and_ends_with_the_last(one_running: Worker) -> None:
    one_running.claim()
    assert one_running.tell(ShutdownAsked()) == [StopJob(job=A, reason=StopReason.SHUTDOWN)]
    assert one_running.tell(JobEnded(job=A)) == [Exit()]


def test_a_shutdown_gives_back_what_was_claimed_meanwhile(worker: Worker) -> None:
    assert worker.tell(ShutdownAsked()) == []
    assert worker.claim(ClaimedJob(id=A, priority=0)) == [ReturnJob(job=A), Exit()]


def test_news_of_unknown_jobs_changes_nothing(worker: Worker) -> None:
    assert worker.tell(JobPrepared(job=A)) == []
    assert worker.tell(JobEnded(job=A)) == []
    assert worker.tell(StopAsked(job=A, reason=StopReason.CANCELLED)) == []
    assert worker.adopted(A, 1) == []
    assert worker.plans(7, A=1) == []
