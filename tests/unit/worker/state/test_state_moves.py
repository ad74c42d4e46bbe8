"""Jobs in line that go to another worker."""

from tensile_db.worker.messages import (
    ClaimedJob,
    JobPrepared,
    StopAsked,
    StopJob,
    StopReason,
)
from tests.played.told_worker import A, B, C, Worker


def test_a_job_in_line_is_let_go_for_another_worker(one_running: Worker) -> None:
    one_running.ready(B)
    one_running.infeasible(2)
    one_running.plans(3, B=90)
    one_running.ready(C)
    moved = StopAsked(job=B, reason=StopReason.MOVED)
    assert one_running.tell(moved)[0] == StopJob(job=B, reason=StopReason.MOVED)
    assert one_running.tell(moved) == []


def test_a_job_that_runs_or_is_about_to_is_not_let_go(worker: Worker) -> None:
    worker.claim(ClaimedJob(id=A, priority=0))
    moved = StopAsked(job=A, reason=StopReason.MOVED)
    assert worker.tell(moved) == []
    worker.tell(JobPrepared(job=A))
    worker.plans(1, A=80)
    assert worker.tell(moved) == []
    worker.adopted(A, 1)
    assert worker.tell(moved) == []
