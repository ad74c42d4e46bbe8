"""Writes to a job's rows that fail once another attempt owns the job.

A worker that lost its lease, e.g. after a long stop of its machine, must not overwrite what its successor
writes.  `hold` locks the job's row for the transaction, so that a takeover waits until it has committed.

The lock is FOR NO KEY UPDATE, here and wherever a job's row is locked: a row that refers to the job, e.g. a
model's, keeps a share of the job's key locked until its transaction has ended, and hundreds of MiB of weights
in that transaction must cost no lease.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, func, select, update

from tensile_db.catalog import schema
from tensile_db.errors import LostLease


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One attempt of one worker at a job: what every write is bound to."""

    job: int
    worker: int
    attempt: int

    def owns(self) -> ColumnElement[bool]:
        """Return the condition on tensile.jobs that this attempt still owns the job."""
        jobs = schema.jobs.c
        return and_(
            jobs.id == self.job,
            jobs.worker_id == self.worker,
            jobs.attempt == self.attempt,
            jobs.state.in_(("waiting", "running")),
        )

    def lost(self) -> LostLease:
        """Return the error of an attempt that owns the job no more."""
        return LostLease(f"attempt {self.attempt} at job {self.job} was given up or taken over")


def hold(conn: Connection, fence: Fence) -> None:
    """Make sure until the transaction's end that the attempt owns the job.

    Locks the job's row.  Raises LostLease.
    """
    query = select(schema.jobs.c.id).where(fence.owns()).with_for_update(key_share=True)
    if conn.execute(query).first() is None:
        raise fence.lost()


def lock_if_free(conn: Connection, fence: Fence) -> bool:
    """Lock the job's row until the transaction's end; False where another transaction has it.

    For whoever must not wait for one that a job's owner leaves open.  Raises LostLease.
    """
    query = select(schema.jobs.c.id).where(fence.owns())
    if conn.execute(query.with_for_update(key_share=True, skip_locked=True)).first() is not None:
        return True
    if conn.execute(query).first() is None:
        raise fence.lost()
    return False


def write(conn: Connection, fence: Fence, **values: Any) -> None:
    """Set columns of the job's row, which renews its lease unless that is set, too.  Raises LostLease.

    The heartbeat does not wait for a row that is locked, and may find a busy job's so at each of its beats.
    """
    signs = {"updated_at": func.now(), "heartbeat_at": func.now()}
    query = update(schema.jobs).where(fence.owns()).values(signs | values)
    if conn.execute(query).rowcount == 0:
        raise fence.lost()
