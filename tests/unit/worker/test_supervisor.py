"""A supervisor and workers that end as they are told to, without processes."""

import io
import logging
import threading

import pytest

from tensile_db.errors import InvalidRequest, WorkerUnavailable
from tensile_db.worker import service
from tensile_db.worker import supervisor as supervisor_module
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.supervisor import CANNOT_START, Supervisor

KILLED, LOST_DEVICE, FAILED = -9, 74, 1


class Pauses(threading.Event):
    """Notes how long it is waited for, and lets nobody wait."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def wait(self, timeout=None):
        self.noted.append(timeout)
        return self.is_set()


class Ended:
    """A worker's process that has ended."""

    def __init__(self, status):
        self.pid, self.stdin = 1, io.BytesIO()
        self._status = status

    def send_signal(self, number):
        pass

    def poll(self):
        return self._status

    def wait(self):
        return self._status


def pauses_of(*statuses):
    """Run workers that end so, then one that is told to stop; return the pauses before each but the first."""
    left = list(statuses)

    def start():
        if not left:
            supervisor.stop()
        return Ended(left.pop(0) if left else 0)

    supervisor = Supervisor(WorkerConfig(dsn=""), start_process=start)
    supervisor._stopped = Pauses()
    supervisor.run()
    assert left == []
    return supervisor._stopped.noted


def test_a_first_worker_that_cannot_start_is_the_last():
    with pytest.raises(WorkerUnavailable, match="the worker cannot start"):
        pauses_of(CANNOT_START, KILLED)


@pytest.mark.parametrize("died", [KILLED, LOST_DEVICE, FAILED])
def test_one_that_cannot_start_in_the_place_of_one_that_died_is_tried_again(died, caplog):
    assert pauses_of(died, CANNOT_START, CANNOT_START, died, CANNOT_START) == [0.5, 1, 2, 4, 8]
    said = [record.getMessage() for record in caplog.records]
    assert "died" in said[0]
    assert said[1:3] == [
        f"the worker cannot start, which an earlier one could (exit status 78); the next one starts in {s} s"
        for s in ("1.0", "2.0")
    ]


def test_pauses_grow_to_half_a_minute():
    assert pauses_of(KILLED, *[CANNOT_START] * 8) == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_after_one_that_lived_for_long_the_pause_is_short_again(monkeypatch):
    monkeypatch.setattr(supervisor_module, "_LONG_LIFE_S", -1.0)
    assert pauses_of(KILLED, CANNOT_START, KILLED) == [0.5, 0.5, 0.5]


def test_a_worker_that_is_told_to_stop_while_it_cannot_start_is_no_error():
    def start():
        if started:
            supervisor.stop()
        started.append(True)
        return Ended(CANNOT_START if len(started) > 1 else KILLED)

    started = []
    supervisor = Supervisor(WorkerConfig(dsn=""), start_process=start)
    supervisor._stopped = Pauses()
    supervisor.run()
    assert len(started) == 2


@pytest.mark.parametrize(("has_been_up", "status"), [(False, CANNOT_START), (True, FAILED)])
def test_what_ends_a_worker_that_was_up_is_not_said_to_have_kept_it_from_starting(
    monkeypatch, caplog, has_been_up, status
):
    class Worker:
        def __init__(self, config):
            self.has_been_up = has_been_up

        def stop(self):
            pass

        def run(self):
            raise InvalidRequest("the server refuses the worker", hint="Mend the password.")

    monkeypatch.setattr(service, "Worker", Worker)
    monkeypatch.setattr(service, "prepare_process", lambda worker: None)
    monkeypatch.setattr(logging, "basicConfig", lambda **options: None)
    line = supervisor_module._encode(WorkerConfig(dsn=""))
    monkeypatch.setattr(supervisor_module, "_read_line", lambda descriptor: line)
    monkeypatch.setattr(supervisor_module, "_stop_without_parent", lambda stop: None)
    with pytest.raises(SystemExit) as end:
        supervisor_module.main()
    assert end.value.code == status
    assert "the server refuses the worker  Hint: Mend the password." in caplog.text
