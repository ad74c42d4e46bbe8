"""Waiting for a job: polls its row, tells its progress, and passes a cancellation on.

Runs inside PostgreSQL, in the caller's transaction: a long wait holds back vacuum as any long query does.
"""

import json
import time
from typing import Any

from tensile_db.errors import JobCancelled, TensileError, UndefinedModel, format_nbytes
from tensile_db.udf.session import QUERY_CANCELED, Session

#: The states in which a job stays.
ENDED = {"succeeded", "failed", "cancelled"}

#: A short job is answered at once, and a long one costs two small queries a second.
_FIRST_POLL_S = 0.02
_LONGEST_POLL_S = 0.5
_POLL_GROWTH = 1.3

_NOTICE_EVERY_S = 2.0

#: A plan that takes longer is explained: it is made with care, or splits are looked for.
_SLOW_PLANNING_S = 4.0

#: The server signals a cancellation to the process and to its group, so one Ctrl-C may interrupt twice; and
#: people press it twice.
_CANCEL_ATTEMPTS = 5

#: The worker's lease: after this long without a sign of life the job may be claimed again.
LEASE_S = 30


def read_status(session: Session, job: int) -> dict[str, Any]:
    """Return the job's row as it is now.  Raises UndefinedModel where the caller has no such job."""
    call = "job_status(" if session.sees_other_commits() else "job_status_now(tensile.sign(), "
    text = session.value(f"SELECT tensile.{call}{{job}})::text", job=("bigint", job))
    if text is None:
        raise UndefinedModel(f"no job {job}", hint="tensile.jobs has the jobs that you may see.")
    status: dict[str, Any] = json.loads(text)
    return status


def follow(
    session: Session, job: int, *, timeout_s: float | None = None, tolerated: str | None = None
) -> dict[str, Any]:
    """Wait for the job's end and return its row; after the timeout, its row as it then is.

    tolerated: the SQLSTATE of a failure that is an answer and not an error.
    Raises the job's own error, or JobCancelled.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    poll_s = _FIRST_POLL_S
    teller = _Teller(session)
    while True:
        status = read_status(session, job)
        teller.tell_notices(status)
        if status["state"] in ENDED:
            break
        if deadline is not None and time.monotonic() >= deadline:
            return status
        teller.tell(status)
        left_s = poll_s if deadline is None else max(0.0, deadline - time.monotonic())
        session.sleep(min(poll_s, left_s))
        poll_s = min(poll_s * _POLL_GROWTH, _LONGEST_POLL_S)
    if tolerated is None or status["error_sqlstate"] != tolerated:
        _raise_failure(status)
    return status


def follow_own(session: Session, job: int, *, tolerated: str | None = None) -> dict[str, Any]:
    """Wait for a job that ends with this statement: where the statement is cancelled, so is the job."""
    try:
        return follow(session, job, tolerated=tolerated)
    except session.sql_error:
        _cancel(session, job)
        raise


def describe(status: dict[str, Any]) -> str:
    """Return a job's progress as one line."""
    if status["kind"] == "search" and status["state"] == "running" and status["result"]:
        return _describe_search(status)
    parts = [f"job {status['id']}: {status['phase'] if status['state'] == 'running' else status['state']}"]
    if status["wait_reason"] and status["state"] in {"queued", "waiting"}:
        parts.append(status["wait_reason"])
    if status["state"] == "paused":
        resumes = f"tensile_resume({status['id']}) lets it go on"
        if status["pause_reason"]:
            # Only quotas give one, and tensile_resume is refused until the limit is raised.
            parts.append(status["pause_reason"])
            resumes += " once a member of tensile_admin allows more"
        parts.append(resumes)
    if status["state"] != "running":
        return ", ".join(parts)
    if status["epoch"] and status["epochs"]:
        parts.append(f"epoch {status['epoch']} of {status['epochs']}")
    if status["iteration"] is not None and status["iterations_total"]:
        parts.append(f"iteration {status['iteration']} of {status['iterations_total']}")
    if status["loss"] is not None:
        parts.append(f"loss {status['loss']:.4g}")
    if status["samples_per_second"]:
        parts.append(f"{status['samples_per_second']:.0f} rows/s")
    peak = status["measured_peak_nbytes"] or status["planned_peak_nbytes"]
    if peak:
        vanilla = status["vanilla_peak_nbytes"]
        saved = f" instead of {format_nbytes(vanilla)}" if vanilla and vanilla > peak else ""
        parts.append(f"{format_nbytes(peak)} of device memory{saved}")
    return ", ".join(parts)


def _describe_search(status: dict[str, Any]) -> str:
    """Return a search's progress as one line; its worker keeps what it tells in the job's result."""
    result, best = status["result"], status["result"].get("best")
    ended = result["begun"] - result["unfinished"]
    parts = [f"search {status['id']}: {ended} of {result['trials']} trials ended"]
    parts += [f"{result[name]} {name}" for name in ("pruned", "failed") if result[name]]
    parts.append(f"{result['unfinished']} under way")
    if best:
        chosen = ", ".join(f"{name} {_short(value)}" for name, value in best["params"].items())
        parts.append(f"best so far {result['metric']} {best['value']:.4g} of trial {best['trial']}: {chosen}")
    if status["wait_reason"]:
        parts.append(f"waits: {status['wait_reason']}")
    return ", ".join(parts)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class _Teller:
    """Tells a job's progress: at once when its phase changes, else every couple of seconds."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._line = ""
        self._phase: tuple[str, str] | None = None
        self._told_at = 0.0
        #: Since when the phase is told.
        self._since = 0.0
        self._silent = False
        self._is_slow = False
        #: Why a job is still queued, and when that was looked up.
        self._wait_reason: str | None = None
        self._looked_at = 0.0
        self._noticed: set[str] = set()

    def tell_notices(self, status: dict[str, Any]) -> None:
        """Send what the worker found that whoever trains may not expect; another attempt finds it again."""
        for message in status["notices"]:
            if message not in self._noticed:
                self._noticed.add(message)
                self._session.notice(f"job {status['id']}: {message}")

    def tell(self, status: dict[str, Any]) -> None:
        """Send a NOTICE if there is something new."""
        now = time.monotonic()
        phase = (status["state"], status["phase"])
        if phase == self._phase:
            status = status | {"wait_reason": status["wait_reason"] or self._queued_for(status, now)}
        line = describe(status)
        if phase != self._phase:
            self._since, self._is_slow, self._wait_reason = now, False, None
        if phase != self._phase or (line != self._line and now - self._told_at >= _NOTICE_EVERY_S):
            self._session.notice(line)
            self._phase, self._line, self._told_at = phase, line, now
        # One that waits in line is in that phase, too.
        plans = status["phase"] == "planning" and not status["wait_reason"]
        if plans and not self._is_slow and now - self._since >= _SLOW_PLANNING_S:
            self._is_slow = True
            self._session.notice(
                f"job {status['id']}: still planning; where memory is short, that may take a minute or two"
            )
        # Of a job that no worker has taken, what it waits for says more.
        explained = status["state"] == "queued" and status["wait_reason"]
        silent = status["state"] != "paused" and not explained and status["silent_s"] > LEASE_S
        if silent and not self._silent:
            self._session.notice(
                f"job {status['id']}: no worker has been heard of for {status['silent_s']:.0f} s;"
                " it goes on as soon as one is there"
            )
        self._silent = silent

    def _queued_for(self, status: dict[str, Any], now: float) -> str | None:
        """Return why no worker has taken the job for a while; None where one is about to, or has."""
        if status["state"] != "queued":
            return None
        if now - max(self._since, self._looked_at) >= _NOTICE_EVERY_S:
            self._looked_at = now
            self._wait_reason = self._session.value(
                "SELECT wait_reason FROM tensile.queue WHERE job_id = {job}", job=("bigint", status["id"])
            )
        return self._wait_reason


def _raise_failure(status: dict[str, Any]) -> None:
    """Raise what ended a job that did not succeed."""
    if status["state"] == "cancelled":
        raise JobCancelled(status["error_message"] or f"job {status['id']} was cancelled")
    if status["state"] == "failed":
        error = TensileError(
            status["error_message"] or f"job {status['id']} failed", hint=status["error_hint"] or ""
        )
        error.sqlstate = status["error_sqlstate"] or error.sqlstate
        raise error


def _cancel(session: Session, job: int) -> None:
    """Ask for the job's end, whatever comes of it: the statement's own error matters more."""
    for _ in range(_CANCEL_ATTEMPTS):
        try:
            session.value("SELECT tensile.request_cancel_visibly(tensile.sign(), {job})", job=("bigint", job))
        except session.sql_error as error:
            failure = error
            if getattr(error, "sqlstate", None) == QUERY_CANCELED:
                continue
        else:
            return
        break
    session.warning(f"job {job} goes on, for its cancellation failed: {failure}")
