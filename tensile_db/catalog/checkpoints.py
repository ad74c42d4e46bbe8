"""Checkpoints of jobs under way: written part by part, counted only when complete.

The job's row is not locked while tensors are written or removed, which may take seconds: the heartbeat needs
it.  The caller owns the transactions: one for `begin`, any number for `write`, one for `complete`, one for
`remove_older`.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from tensile_db.catalog import events, schema, tensors
from tensile_db.catalog.fence import Fence, hold
from tensile_db.catalog.tensors import StoredTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A complete checkpoint, without its tensors."""

    id: int
    iteration: int
    random_state: bytes
    detail: Mapping[str, Any]


def begin(
    conn: Connection, fence: Fence, *, iteration: int, random_state: bytes, detail: Mapping[str, Any]
) -> int:
    """Begin a checkpoint after `iteration` iterations; return its id.  Raises LostLease."""
    hold(conn, fence)
    query = insert(schema.checkpoints).values(
        job_id=fence.job,
        iteration=iteration,
        attempt=fence.attempt,
        random_state=random_state,
        detail=dict(detail),
    )
    return int(conn.execute(query.returning(schema.checkpoints.c.id)).scalar_one())


def write(conn: Connection, checkpoint: int, state: Iterable[StoredTensor]) -> None:
    """Write tensors of a checkpoint that is not complete yet."""
    tensors.write(conn, schema.checkpoint_tensors, "checkpoint_id", checkpoint, state)


def complete(conn: Connection, fence: Fence, checkpoint: int, *, iteration: int) -> None:
    """Let the job go on from this checkpoint.  Raises LostLease."""
    hold(conn, fence)
    query = update(schema.checkpoints).where(schema.checkpoints.c.id == checkpoint)
    conn.execute(query.values(complete=True))
    events.add(conn, fence.job, "checkpoint", {"iteration": iteration, "attempt": fence.attempt})


def remove_older(conn: Connection, job: int, checkpoint: int) -> None:
    """Remove what a job wrote before a complete checkpoint.

    Needs no fence: whoever owns the job now has checkpoints that are newer.
    """
    c = schema.checkpoints.c
    conn.execute(delete(schema.checkpoints).where(c.job_id == job, c.id < checkpoint))


def newest(conn: Connection, job: int) -> CheckpointRow | None:
    """Return the newest complete checkpoint of a job."""
    c = schema.checkpoints.c
    query = (
        select(c.id, c.iteration, c.random_state, c.detail)
        .where(c.job_id == job, c.complete)
        .order_by(c.iteration.desc(), c.id.desc())
        .limit(1)
    )
    row = conn.execute(query).one_or_none()
    return None if row is None else CheckpointRow(**row._asdict())


def read(conn: Connection, checkpoint: int) -> AbstractContextManager[Iterator[StoredTensor]]:
    """Give the checkpoint's tensors, by name."""
    return tensors.read(conn, schema.checkpoint_tensors, "checkpoint_id", checkpoint)


def remove_all(conn: Connection, fence: Fence) -> None:
    """Remove the checkpoints of a job that comes to its end in this transaction.  Raises LostLease."""
    conn.execute(delete(schema.checkpoints).where(schema.checkpoints.c.job_id == fence.job))
    hold(conn, fence)
