"""What happened to each job, in order (tensile.job_events).  The caller owns the transaction."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, func, insert, select

from tensile_db.catalog import schema


def add(conn: Connection, job: int, kind: str, detail: Mapping[str, Any]) -> None:
    """Record that something happened to the job."""
    conn.execute(insert(schema.job_events).values(job_id=job, kind=kind, detail=dict(detail)))


def count_since(conn: Connection, job: int, kind: str, since: str) -> int:
    """Return how often `kind` happened to the job since `since` last did, or ever if that never did."""
    events = schema.job_events.c
    last = select(func.coalesce(func.max(events.id), 0)).where(events.job_id == job, events.kind == since)
    query = select(func.count()).where(
        events.job_id == job, events.kind == kind, events.id > last.scalar_subquery()
    )
    return conn.execute(query).scalar_one()
