"""Starting the private cluster's worker: one that runs is given up only for one that starts."""

import pytest

from tensile_db.commands import starting
from tensile_db.commands.background import BackgroundWorker
from tensile_db.commands.worker_options import WorkerOptions, recall
from tensile_db.errors import InvalidRequest, NoSuchDevice, UnknownName, WorkerUnavailable

ONE = WorkerOptions(memory_nbytes=2_000_000)
OTHER = WorkerOptions(memory_nbytes=3_000_000)


@pytest.fixture
def processes(monkeypatch):
    """Workers that are no processes: what was done, and the options of those that do not start."""
    return Processes(monkeypatch)


class Processes:
    def __init__(self, monkeypatch):
        self.done = []
        self.fails = []
        self.interrupted = []
        self._running = []
        monkeypatch.setattr(BackgroundWorker, "pid", lambda _: 7 if self._running else None)
        monkeypatch.setattr(BackgroundWorker, "options", lambda _: self._running)
        monkeypatch.setattr(BackgroundWorker, "start", self._start)
        monkeypatch.setattr(BackgroundWorker, "stop", self._stop)
        monkeypatch.setattr(starting, "_await_worker", self._await)

    def _start(self, options):
        assert not self._running
        self._running = list(options)
        self.done.append(("start", options[-1]))

    def _stop(self):
        self._running = []
        self.done.append("stop")

    def _await(self, _, background):
        if self._running[-1] in self.fails:
            raise WorkerUnavailable(f"{self._running[-1]} does not start")
        if self._running[-1] in self.interrupted:
            raise KeyboardInterrupt


def test_one_that_runs_so_is_left_alone_unless_a_fresh_one_is_wanted(processes, tmp_path):
    starting.start_worker(tmp_path, ONE)
    starting.start_worker(tmp_path, ONE)
    assert processes.done == [("start", "2000000")]
    starting.start_worker(tmp_path, ONE, fresh=True)
    assert processes.done == [("start", "2000000"), "stop", ("start", "2000000")]


def test_one_with_other_options_takes_its_place(processes, tmp_path):
    starting.start_worker(tmp_path, ONE)
    starting.start_worker(tmp_path, OTHER)
    assert processes.done == [("start", "2000000"), "stop", ("start", "3000000")]
    assert recall(tmp_path) == OTHER


def test_where_another_does_not_start_the_one_that_ran_does_again(processes, tmp_path):
    processes.fails = ["3000000"]
    starting.start_worker(tmp_path, ONE)
    with pytest.raises(WorkerUnavailable):
        starting.start_worker(tmp_path, OTHER)
    assert processes.done[-2:] == ["stop", ("start", "2000000")]
    assert recall(tmp_path) == ONE


def test_an_interrupt_too_has_the_one_that_ran_start_again(processes, tmp_path):
    starting.start_worker(tmp_path, ONE)
    processes.interrupted = ["3000000"]
    with pytest.raises(KeyboardInterrupt):
        starting.start_worker(tmp_path, OTHER)
    assert processes.done[-1] == ("start", "2000000")


def test_where_neither_starts_the_first_reason_is_told(processes, tmp_path):
    starting.start_worker(tmp_path, ONE)
    processes.fails = ["2000000", "3000000"]
    with pytest.raises(WorkerUnavailable, match="3000000"):
        starting.start_worker(tmp_path, OTHER)
    assert [what for what in processes.done if what != "stop"][-1] == ("start", "2000000")


@pytest.mark.parametrize("beyond", [{"threads": 10**6}, {"memory_nbytes": 2**60}], ids=str)
def test_for_what_this_machine_has_not_nobody_is_stopped(processes, tmp_path, beyond):
    starting.start_worker(tmp_path, ONE)
    with pytest.raises(InvalidRequest):
        starting.start_worker(tmp_path, WorkerOptions(**beyond))
    assert processes.done == [("start", "2000000")]
    assert recall(tmp_path) == ONE


def test_a_fresh_worker_that_does_not_start_is_not_tried_again(processes, tmp_path):
    starting.start_worker(tmp_path, ONE)
    processes.fails = ["2000000"]
    with pytest.raises(WorkerUnavailable):
        starting.start_worker(tmp_path, ONE, fresh=True)
    assert processes.done == [("start", "2000000"), "stop", ("start", "2000000")]


@pytest.mark.parametrize(
    ("device", "error"), [("gpu", UnknownName), ("cuda:99", NoSuchDevice)], ids=["unknown", "absent"]
)
def test_for_a_device_that_is_not_there_nobody_is_stopped(processes, tmp_path, device, error):
    starting.start_worker(tmp_path, ONE)
    with pytest.raises(error):
        starting.start_worker(tmp_path, WorkerOptions(device=device))
    assert processes.done == [("start", "2000000")]
    assert recall(tmp_path) == ONE
