"""A training that is paused just where a test wants it to be, however short it is."""

import threading

import pytest

from tests.patience import PATIENCE_S


class Pause:
    """Pauses the first attempt of jobs before an iteration; of workers in the test's process."""

    def __init__(self, patch):
        self._patch = patch

    def before(self, wanted, database, source, **request):
        """Submit a training; return its job's id once it is paused, before the wanted iteration."""
        from tensile_db.worker.jobs.planned_step import PlannedStep

        usual = PlannedStep.at_boundary
        reached = threading.Event()

        def at_boundary(step, *, iteration, left):
            if iteration == wanted and step._job.row.attempt == 1:
                reached.set()
                step._job.mailbox.wait_for_stop(PATIENCE_S)
            usual(step, iteration=iteration, left=left)

        with self._patch.context() as patch:
            patch.setattr(PlannedStep, "at_boundary", at_boundary)
            job = database.submit(source, **request)
            assert reached.wait(PATIENCE_S), database.job(job)
            database.ask(job, pause_requested=True)
            row = database.wait_until(job, lambda row: row["state"] == "paused")
        assert row["iteration"] == wanted - 1
        return job

    def trained(self, iteration, database, source, **request):
        """Do the same, have the training go on, and return the job's row at its end."""
        job = self.before(iteration, database, source, **request)
        database.ask(job, pause_requested=False)
        row = database.wait(job)
        assert row["attempt"] == 2
        return row


@pytest.fixture
def pause(monkeypatch):
    return Pause(monkeypatch)
