"""What a session is told while it waits for a job."""

import json
from types import SimpleNamespace

import pytest

from tensile_db.udf import wait

STATUS = {
    "id": 5,
    "kind": "explain",
    "state": "running",
    "phase": "planning",
    "wait_reason": None,
    "pause_reason": None,
    "epoch": None,
    "epochs": None,
    "iteration": None,
    "iterations_total": None,
    "loss": None,
    "samples_per_second": None,
    "measured_peak_nbytes": None,
    "planned_peak_nbytes": None,
    "vanilla_peak_nbytes": None,
    "silent_s": 0,
    "error_sqlstate": None,
    "result": None,
    "notices": [],
}


class Session:
    """One in which time passes only while it waits; a job is in its phases for so many seconds each."""

    def __init__(self, monkeypatch, phases, **status):
        self.now_s = 1000.0
        self._status = STATUS | status
        self.told = []
        self._ends = []
        end_s = self.now_s
        for phase, seconds in phases:
            end_s += seconds
            self._ends.append((end_s, phase))
        monkeypatch.setattr(wait, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def sees_other_commits(self):
        return True

    def value(self, statement, **arguments):
        phase = next((phase for end_s, phase in self._ends if self.now_s < end_s), None)
        over = {"state": "succeeded"} if phase is None else {"phase": phase}
        return json.dumps(self._status | over)

    def sleep(self, seconds):
        self.now_s += seconds

    def notice(self, line):
        self.told.append(line)


def test_whoever_waits_in_line_is_told_for_what_and_no_more(monkeypatch):
    session = Session(monkeypatch, [("planning", 60)], state="waiting", wait_reason="waits for memory")
    wait.follow(session, 5)
    assert session.told == ["job 5: waiting, waits for memory"]


def test_what_the_worker_found_is_told_once(monkeypatch):
    session = Session(monkeypatch, [("reading rows", 5)], notices=["no row is held out", "one class"])
    wait.follow(session, 5)
    assert session.told == ["job 5: no row is held out", "job 5: one class", "job 5: reading rows"]


def test_what_the_worker_found_is_told_of_a_job_that_has_ended_meanwhile(monkeypatch):
    session = Session(monkeypatch, [], notices=["no row is held out"])
    assert wait.follow(session, 5)["state"] == "succeeded"
    assert session.told == ["job 5: no row is held out"]


@pytest.mark.parametrize(("seconds", "lines"), [(2, 0), (60, 1)])
def test_whoever_waits_long_for_a_plan_is_told_why_once(monkeypatch, seconds, lines):
    session = Session(monkeypatch, [("capturing", 10), ("planning", seconds)])
    assert wait.follow(session, 5)["state"] == "succeeded"
    why = "job 5: still planning; where memory is short, that may take a minute or two"
    assert session.told == ["job 5: capturing", "job 5: planning"] + lines * [why]
