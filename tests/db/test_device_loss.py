"""A device that fails under its jobs: one is told, the others go on with the next worker."""

import os

import pytest
import torch

from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.device_loss import DeviceLoss

LONG = {"epochs": 200, "options": {"hidden_units": [16], "checkpoint_iterations": 20}}


@pytest.fixture
def ended(monkeypatch):
    """Times that a worker ended its process, which here it survives."""
    times = []
    monkeypatch.setattr(DeviceLoss, "end", lambda self: times.append(os.getpid()))
    return times


def test_the_first_job_to_meet_a_lost_device_fails_and_the_others_are_left_to_go_on(
    database, start_worker, monkeypatch, ended
):
    whole, close, is_lost = Executor._run, JobMemory.close, []

    def run(self):
        if is_lost:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure")
        whole(self)

    def close_or_fail(self):
        close(self)
        if is_lost:
            # What it still had under way cannot be waited for.
            raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(Executor, "_run", run)
    monkeypatch.setattr(JobMemory, "close", close_or_fail)
    worker = start_worker()
    jobs = [database.submit("points", **LONG) for _ in range(2)]
    for job in jobs:
        database.wait_until(job, lambda row: (row["iteration"] or 0) > 30)
    is_lost.append(True)
    database.wait_until(jobs[0], lambda _: ended)
    worker.stop()
    rows = [database.job(job) for job in jobs]
    (failed,) = [row for row in rows if row["state"] == "failed"]
    (left,) = [row for row in rows if row["state"] != "failed"]
    assert failed["error_sqlstate"] == "58030"
    assert "unspecified launch failure" in failed["error_message"]
    assert "Submit this job again" in failed["error_hint"]
    assert left["state"] == "running"
    assert len(ended) == 1
