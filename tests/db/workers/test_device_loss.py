"""A device that fails under its jobs: one is told, the others go on with the next worker."""

import os

import pytest

from tensile_db.worker.devices.cpu import CpuDevice
from tensile_db.worker.execution.executor import Executor
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.device_loss import DeviceLoss
from tests import driver_errors as e

LONG = {"epochs": 200, "options": {"hidden_units": [16], "checkpoint_iterations": 20}}


@pytest.fixture
def ended(monkeypatch):
    """Times that a worker ended its process, which here it survives."""
    times = []
    monkeypatch.setattr(DeviceLoss, "end", lambda self: times.append(os.getpid()))
    return times


@pytest.mark.parametrize("seen", [e.lost, e.cublas])
def test_the_first_job_to_meet_a_lost_device_fails_and_the_others_are_left_to_go_on(
    database, start_worker, monkeypatch, ended, seen
):
    whole, close, is_lost = Executor._run, JobMemory.close, []

    def run(self):
        if is_lost:
            raise seen()
        whole(self)

    def close_or_fail(self):
        close(self)
        if is_lost:
            # What it still had under way cannot be waited for.
            raise e.lost()

    monkeypatch.setattr(CpuDevice, "find_loss", lambda device: e.lost() if is_lost else None)
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
    assert "an illegal memory access" in failed["error_message"]
    assert "Submit this job again" in failed["error_hint"]
    assert left["state"] == "running"
    assert len(ended) == 1


@pytest.mark.parametrize(("refused", "sqlstate"), [(e.no_memory, "53200"), (e.invalid, "38000")])
def test_a_job_whose_call_a_device_refuses_fails_alone(
    database, start_worker, monkeypatch, ended, refused, sqlstate
):
    whole, unlucky = Executor._run, []

    def run(self):
        if self._memory.account.job in unlucky:
            raise refused()
        whole(self)

    monkeypatch.setattr(Executor, "_run", run)
    start_worker()
    first, second = (database.submit("points", **LONG) for _ in range(2))
    for job in (first, second):
        database.wait_until(job, lambda row: (row["iteration"] or 0) > 30)
    unlucky.append(first)
    row = database.wait(first)
    assert (row["state"], row["error_sqlstate"]) == ("failed", sqlstate)
    begun = database.job(second)["iteration"]
    row = database.wait_until(second, lambda row: row["iteration"] > begun)
    assert (row["state"], row["attempt"]) == ("running", 1)
    assert ended == []
