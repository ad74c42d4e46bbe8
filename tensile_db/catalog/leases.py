"""Jobs held by workers: claimed, kept alive, and what is asked of them meanwhile.

A job may be claimed when it is queued, or when the lease of whoever holds it has run out: the lease is the
heartbeat's age, never a lock.  SKIP LOCKED lets workers claim at the same time without waiting for one
another.  The caller owns the transaction.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, all_, and_, any_, func, or_, select, update

from tensile_db.catalog import events, schema
from tensile_db.catalog.jobs import JobRow, announce, ids_of, let_go

#: A job whose worker is lost this often without a new checkpoint in between is likely to be the cause.
MAX_LOSSES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the owners of a worker's jobs ask of them."""

    cancel: tuple[int, ...]
    pause: tuple[int, ...]
    #: Of all of them, by job.
    priorities: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """What a worker learns of its jobs when it tells that it is alive."""

    asked: Asked
    #: Jobs that another attempt owns now, or nobody.
    lost: tuple[int, ...]


def claim(
    conn: Connection,
    *,
    worker: int,
    device: str,
    limit: int,
    lease_s: float,
    held: Collection[int] = (),
    only_serving: bool = False,
    among: Collection[int] | None = None,
    memory_nbytes: int | None = None,
) -> tuple[list[JobRow], list[JobRow]]:
    """Claim up to `limit` jobs for a worker; return them, and those that it must not run.

    The latter lost so many workers that they are taken for the cause; the caller fails them.  A search never
    is: one of its trials is, which the same workers ran.
    Those that their owner wants stopped or paused are so on the way.  Higher priority first, then older.
    held: jobs whose threads are not over here.  They are left alone, their leases run out or not: the next
    heartbeat renews a lease that nobody else took, and two attempts at a job have no place in one worker.
    only_serving: leave all jobs alone that do not serve a model.
    among: take no others; memory_nbytes: nor any that was too large for so much.
    """
    jobs = schema.jobs.c
    claimable = and_(
        or_(jobs.state == "queued", has_expired(lease_s)),
        func.coalesce(jobs.options["device"].astext, device) == device,
        jobs.id != all_(ids_of(held)),
        # Else, restored beneath a worker, they would run as whoever has their owners' numbers here.
        func.tensile.is_at_home(),
        *((jobs.kind == "serve",) if only_serving else ()),
    )
    let_go(conn, and_(claimable, or_(jobs.cancel_requested, jobs.pause_requested)))
    if among is not None:
        claimable = and_(claimable, jobs.id == any_(ids_of(among)))
    if memory_nbytes is not None:
        claimable = and_(claimable, func.coalesce(jobs.needed_nbytes, 0) <= memory_nbytes)
    chosen = (
        select(jobs.id, jobs.state.label("was"))
        .where(claimable)
        .order_by(jobs.priority.desc(), jobs.id)
        .limit(limit)
        .with_for_update(skip_locked=True, key_share=True)
        .cte("chosen")
    )
    query = (
        update(schema.jobs)
        .where(jobs.id == chosen.c.id)
        .values(
            state="running",
            phase="reading",
            worker_id=worker,
            attempt=jobs.attempt + 1,
            claimed_at=func.now(),
            started_at=func.coalesce(jobs.started_at, func.now()),
            heartbeat_at=func.now(),
            budget_nbytes=None,
            wait_reason=None,
            meant_for=None,
            updated_at=func.now(),
        )
        .returning(*_ROW, chosen.c.was)
    )
    sound: list[JobRow] = []
    poisonous: list[JobRow] = []
    for row in sorted(conn.execute(query).all(), key=lambda row: (-row.priority, row.id)):
        job = _job(row)
        taken_over = row.was != "queued"
        events.add(
            conn,
            job.id,
            "taken_over" if taken_over else "claimed",
            {"worker": worker, "attempt": job.attempt, "iteration": job.iteration},
        )
        announce(conn, job.id)
        is_suspect = taken_over and job.kind != "search"
        lost_often = is_suspect and events.count_since(conn, job.id, "taken_over", "checkpoint") >= MAX_LOSSES
        (poisonous if lost_often else sound).append(job)
    return sound, poisonous


def has_expired(lease_s: float) -> ColumnElement[bool]:
    """Return the condition on tensile.jobs that nothing was heard of a job's holder for this long."""
    jobs = schema.jobs.c
    return and_(
        jobs.state.in_(("waiting", "running")),
        or_(jobs.heartbeat_at.is_(None), jobs.heartbeat_at < func.now() - timedelta(seconds=lease_s)),
    )


def pulse(conn: Connection, *, worker: int, attempts: Mapping[int, int]) -> Pulse:
    """Renew the leases of a worker's jobs; attempts: job id to attempt.

    Locks the jobs' rows for the transaction.  A row that others hold, such as its owner in a transaction
    left open, is not waited for: that would cost all other jobs their leases; nobody can claim it either.
    """
    jobs = schema.jobs.c
    held = sorted(attempts)
    own = and_(
        jobs.id == any_(ids_of(held)),
        jobs.worker_id == worker,
        jobs.state.in_(("waiting", "running")),
    )
    locked = select(jobs.id).where(own).with_for_update(skip_locked=True, key_share=True).cte("locked")
    conn.execute(update(schema.jobs).where(jobs.id == locked.c.id).values(heartbeat_at=func.now()))
    known = select(*_ASKED, jobs.attempt).where(own).order_by(jobs.id)
    rows = [row for row in conn.execute(known) if row.attempt == attempts[row.id]]
    alive = {row.id for row in rows}
    return Pulse(asked=_asked(rows), lost=tuple(job for job in held if job not in alive))


def cancel_abandoned(conn: Connection) -> int:
    """Ask for the end of jobs whose session is gone while it waited for them; return how many."""
    return int(conn.execute(select(func.tensile.cancel_abandoned())).scalar_one())


def pause_over_quota(conn: Connection) -> int:
    """Ask training jobs to rest whose role has used up its device time; return how many."""
    return int(conn.execute(select(func.tensile.pause_over_quota())).scalar_one())


def asked(conn: Connection, *, worker: int) -> Asked:
    """Return what the owners of the worker's jobs ask of them.  Takes no lock."""
    jobs = schema.jobs.c
    query = select(*_ASKED).where(jobs.worker_id == worker, jobs.state.in_(("waiting", "running")))
    return _asked(conn.execute(query.order_by(jobs.id)).all())


def expire(conn: Connection, workers: Sequence[int]) -> int:
    """Make the jobs of workers that are gone claimable at once; return how many.

    Those whose owners have locked their rows are left to their leases: no worker waits for them to start.
    """
    jobs = schema.jobs.c
    left = (
        select(jobs.id)
        .where(jobs.worker_id == any_(ids_of(workers)), jobs.state.in_(("waiting", "running")))
        .with_for_update(skip_locked=True, key_share=True)
        .cte("left_behind")
    )
    query = update(schema.jobs).where(jobs.id == left.c.id).values(heartbeat_at=None)
    return conn.execute(query).rowcount


_ASKED = tuple(schema.jobs.c[name] for name in ("id", "cancel_requested", "pause_requested", "priority"))


_searches = schema.jobs.alias("searches")
_SEARCH_CREATED_AT = (
    select(_searches.c.created_at)
    .where(_searches.c.id == schema.jobs.c.search_id)
    .scalar_subquery()
    .label("search_created_at")
)

#: The columns of JobRow.
_ROW = tuple(
    _SEARCH_CREATED_AT if field.name == "search_created_at" else schema.jobs.c[field.name]
    for field in fields(JobRow)
)


def _asked(rows: Sequence[Any]) -> Asked:
    return Asked(
        cancel=tuple(row.id for row in rows if row.cancel_requested),
        # Its end is what is asked for, then.
        pause=tuple(row.id for row in rows if row.pause_requested and not row.cancel_requested),
        priorities=tuple((row.id, row.priority) for row in rows),
    )


def _job(row: Row[Any]) -> JobRow:
    return JobRow(**{field.name: getattr(row, field.name) for field in fields(JobRow)})
