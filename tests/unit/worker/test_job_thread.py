"""Whatever a job raises ends it in its row, with what it was."""

from types import SimpleNamespace

import pytest

from tensile_db.worker.jobs import job_thread

JOB = SimpleNamespace(
    id=7, row=SimpleNamespace(kind="train", fence="fence"), records=SimpleNamespace(fence="fence")
)


class Odd(BaseException):
    """Neither an Exception nor one of Python's own."""


@pytest.mark.parametrize(
    "raised", [ValueError("bad"), SystemExit("bad"), KeyboardInterrupt("bad"), Odd("bad")]
)
def test_whatever_a_job_raises_is_written_as_its_end(monkeypatch, raised):
    def run(job):
        raise raised

    monkeypatch.setitem(job_thread.KINDS, "train", run)
    end = job_thread._run(JOB)
    assert end.func is job_thread.jobs.fail
    assert end.keywords["sqlstate"] == "XX000"
    assert end.keywords["message"] == f"internal error: {type(raised).__name__}: bad"
