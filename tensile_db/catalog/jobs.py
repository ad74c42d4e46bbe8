"""Jobs: what they ask, moved from state to state by whoever holds them, and let go.

The caller owns the transaction.  How workers come to hold jobs is in `leases.py`.

Channel `tensile_job_changes` gets a job's id at changes of
state only, for NOTIFY takes a lock that all commits share.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, any_, func, literal, select, update
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT

from tensile_db.catalog import events, schema
from tensile_db.catalog.fence import Fence, lock_if_free, write


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A request, as it was submitted, and how far earlier attempts came."""

    id: int
    kind: str
    #: OID and name of the role that asked.
    submitted_by: int
    owner: str
    database: str
    architecture: str | None
    source_oid: int
    source_name: str
    target: str | None
    features: Sequence[str] | None
    model: str | None
    model_id: int | None
    #: The model whose weights a training starts from.
    initial_model_id: int | None
    #: The pretrained weights that it starts from.
    pretrained_id: int | None
    #: The search that it is a trial of, and when that was submitted.
    search_id: int | None
    search_created_at: datetime | None
    epochs: int | None
    batch_size: int | None
    optimizer: str | None
    learning_rate: float | None
    validation: float | None
    seed: int
    priority: int
    memory_limit_nbytes: int | None
    policy: str
    options: Mapping[str, Any]
    #: Of the session that asked, by name.
    settings: Mapping[str, str]
    created_at: datetime
    attempt: int
    worker_id: int | None
    iteration: int | None
    #: Of earlier attempts.
    device_seconds: float

    @property
    def fence(self) -> Fence:
        """What this attempt's writes are bound to."""
        assert self.worker_id is not None
        return Fence(job=self.id, worker=self.worker_id, attempt=self.attempt)


def hold_in_line(conn: Connection, fence: Fence, wait_reason: str) -> bool:
    """Let the job's row say that it waits, and why; return False where its owner has locked it.

    Raises LostLease.
    """
    if not lock_if_free(conn, fence):
        # Whoever keeps the line looks after all jobs, and waits for nobody.
        return False
    write(conn, fence, state="waiting", phase="planning", wait_reason=wait_reason)
    events.add(conn, fence.job, "waiting", {"reason": wait_reason})
    announce(conn, fence.job)
    return True


def start(conn: Connection, fence: Fence, *, phase: str, budget_nbytes: int, kind: str = "started") -> None:
    """Let the job's row say that it runs, and with how much device memory.  Raises LostLease.

    kind: of the event.
    """
    write(
        conn,
        fence,
        state="running",
        phase=phase,
        wait_reason=None,
        meant_for=None,
        budget_nbytes=budget_nbytes,
    )
    events.add(conn, fence.job, kind, {"budget_nbytes": budget_nbytes, "attempt": fence.attempt})
    announce(conn, fence.job)


def measured_peak_nbytes(conn: Connection, job: int) -> int:
    """Return the most that the job has held of a device, in bytes; 0 where nothing was measured yet."""
    peak = schema.jobs.c.measured_peak_nbytes
    return int(conn.execute(select(func.coalesce(peak, 0)).where(schema.jobs.c.id == job)).scalar_one())


def succeed(conn: Connection, fence: Fence, result: Mapping[str, Any], **values: Any) -> None:
    """End the job well.  Raises LostLease."""
    write(conn, fence, **_ended("succeeded"), result=dict(result), **values)
    events.add(conn, fence.job, "succeeded", {"attempt": fence.attempt})
    announce(conn, fence.job)


def fail(conn: Connection, fence: Fence, *, sqlstate: str, message: str, hint: str, detail: str = "") -> None:
    """End the job with an error; the detail goes to the event only.  Raises LostLease."""
    write(
        conn,
        fence,
        **_ended("failed"),
        error_sqlstate=sqlstate,
        error_message=message,
        error_hint=hint or None,
    )
    error = {"sqlstate": sqlstate, "message": message} | ({"detail": detail} if detail else {})
    events.add(conn, fence.job, "failed", error)
    announce(conn, fence.job)


def cancel(conn: Connection, fence: Fence, *, reason: str = "") -> None:
    """End the job as its owner asked; reason: why, where others did.  Raises LostLease."""
    message = f"the job was {reason or 'cancelled'}"
    write(conn, fence, **_ended("cancelled"), error_sqlstate="57014", error_message=message)
    because = {"reason": reason} if reason else {}
    events.add(conn, fence.job, "cancelled", {"attempt": fence.attempt} | because)
    announce(conn, fence.job)


def give_back(conn: Connection, fence: Fence, **values: Any) -> None:
    """Let go of the job, for whoever claims it next, or so that it rests.  Raises LostLease.

    What its owner asks for at this moment decides (trigger settle_unheld): it is queued, paused or cancelled.
    values: columns of its row that say where it can go.
    """
    query = update(schema.jobs).where(fence.owns()).values(updated_at=func.now(), **(_UNHELD | values))
    state = conn.execute(query.returning(schema.jobs.c.state)).scalar_one_or_none()
    if state is None:
        raise fence.lost()
    _tell_let_go(conn, fence.job, state, {"attempt": fence.attempt} | values)


def unfinished(conn: Connection, among: Sequence[int]) -> set[int]:
    """Return those of the jobs that have not come to their end."""
    jobs = schema.jobs.c
    query = select(jobs.id).where(jobs.id == any_(ids_of(among)), jobs.finished_at.is_(None))
    return set(conn.execute(query).scalars())


def let_go(conn: Connection, condition: ColumnElement[bool]) -> None:
    """Let jobs that nobody works at become what their owners ask for (trigger settle_unheld).

    condition: on tensile.jobs, true of such jobs only.  Rows that others have locked are left out.
    """
    jobs = schema.jobs.c
    chosen = select(jobs.id).where(condition).with_for_update(skip_locked=True, key_share=True).cte("chosen")
    query = (
        update(schema.jobs)
        .where(jobs.id == chosen.c.id)
        .values(updated_at=func.now(), **_UNHELD)
        .returning(jobs.id, jobs.state)
    )
    for job, state in conn.execute(query).all():
        _tell_let_go(conn, job, state, {})


def ids_of(ids: Collection[int]) -> ColumnElement[Any]:
    """Return these ids as an array, to compare columns with."""
    return literal(sorted(ids), ARRAY(BIGINT))


def announce(conn: Connection, job: int) -> None:
    """Notify those who wait for the job that its state has changed."""
    conn.execute(select(func.pg_notify("tensile_job_changes", str(job))))


#: Of a job that no worker holds any more.
_UNHELD = {
    "state": "queued",
    "phase": "queued",
    "wait_reason": None,
    "worker_id": None,
    "heartbeat_at": None,
    "budget_nbytes": None,
    "samples_per_second": None,
}


def _ended(state: str) -> dict[str, Any]:
    return {"state": state, "phase": "done", "finished_at": func.now(), "wait_reason": None}


def _tell_let_go(conn: Connection, job: int, state: str, detail: Mapping[str, Any]) -> None:
    events.add(conn, job, "requeued" if state == "queued" else state, detail)
    announce(conn, job)
    if state == "queued":
        conn.execute(select(func.pg_notify("tensile_jobs", str(job))))
