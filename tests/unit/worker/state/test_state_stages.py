"""Jobs that give their memory back and come in line again, with the graph of another stage."""

from tensile_db.worker.messages import (
    BeginStage,
    JobEnded,
    JobPrepared,
    Reason,
    StageEnded,
    StopAsked,
    StopJob,
    StopReason,
)
from tests.played.told_worker import A, B, Worker, asks, start


def alone_with_one_in_line(priority: int = 0) -> Worker:
    worker = Worker(alone=True)
    worker.ready(A)
    worker.plans(1, A=80)
    worker.adopted(A, 1)
    worker.ready(B, priority)
    return worker


def test_a_stages_memory_is_the_others_at_once(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    assert one_running.tell(StageEnded(job=A)) == [BeginStage(job=A), asks(4, (B, Reason.COLD_START))]
    assert one_running.plans(4, B=90) == [start("B", 4, 90)]
    one_running.adopted(B, 4)
    joins = asks(5, (B, Reason.ARRIVAL), (A, Reason.COLD_START))
    assert one_running.tell(JobPrepared(job=A)) == [joins]


def test_who_runs_alone_is_not_overtaken_between_its_stages() -> None:
    worker = alone_with_one_in_line()
    assert worker.tell(StageEnded(job=A)) == [BeginStage(job=A)]
    assert worker.tell(JobPrepared(job=A)) == [asks(2, (A, Reason.COLD_START))]
    worker.plans(2, A=10)
    worker.adopted(A, 2)
    assert worker.tell(JobEnded(job=A)) == [asks(3, (B, Reason.COLD_START))]


def test_one_that_ends_between_its_stages_keeps_nobody_waiting() -> None:
    worker = alone_with_one_in_line()
    worker.tell(StageEnded(job=A))
    assert worker.tell(JobEnded(job=A)) == [asks(2, (B, Reason.COLD_START))]


def test_one_of_higher_priority_goes_first_when_the_stage_is_prepared() -> None:
    worker = alone_with_one_in_line(priority=1)
    assert worker.tell(StageEnded(job=A)) == [BeginStage(job=A)]
    assert asks(2, (B, Reason.COLD_START)) in worker.tell(JobPrepared(job=A))


def test_one_that_was_told_to_stop_begins_no_stage_and_holds_nothing(one_running: Worker) -> None:
    stop = StopAsked(job=A, reason=StopReason.CANCELLED)
    assert one_running.tell(stop) == [StopJob(job=A, reason=StopReason.CANCELLED)]
    assert one_running.tell(StageEnded(job=A)) == []
    assert not one_running.state.shares
