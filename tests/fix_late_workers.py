"""Workers whose device puts everything off, hands memory out again at once, and knows workspaces."""

import pytest


class LateWorkers:
    """Starts them."""

    def __init__(self, start_worker, monkeypatch):
        #: Of the worker started last.
        self.runtime = None
        self.device = None
        self._start = start_worker
        self._monkeypatch = monkeypatch

    def start(self, *, replay=False, memory_nbytes=256 * 2**20, workspace=None, **settings):
        """Start one; workspace: as a LateRuntime takes it."""
        from tensile_db.worker import service
        from tensile_db.worker.execution.executor import Executor
        from tensile_db.worker.jobs import planned_forward, planned_step
        from tensile_db.worker.workspaces import known
        from tensile_db.worker.workspaces.meter import WorkspaceMeter
        from tests.late_runs import open_late
        from tests.late_step import late_step

        of_runtime = {} if workspace is None else {"workspace": workspace}
        runtime, device = open_late(
            "kernels first", memory_nbytes=memory_nbytes, can_record=replay, **of_runtime
        )
        self.runtime, self.device = runtime, device
        self._monkeypatch.setattr(service, "open_device", lambda config: device)

        def late(make):
            return lambda step, on, **named: make(late_step(step, runtime), on, **named)

        for module in (planned_step, planned_forward):
            self._monkeypatch.setattr(module, "Executor", late(Executor))
        self._monkeypatch.setattr(known, "WorkspaceMeter", late(WorkspaceMeter))
        return self._start(**settings)


@pytest.fixture
def late_workers(start_worker, monkeypatch):
    return LateWorkers(start_worker, monkeypatch)
