"""Searches and their trials.  The caller owns the transaction.

A trial's job and its row of search_trials are written together, so that what a search has begun is known
whatever becomes of its worker.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, case, delete, func, insert, select, update

from tensile_db.catalog import events, jobs, schema
from tensile_db.catalog.fence import Fence, hold
from tensile_db.catalog.jobs import JobRow

UNFINISHED = ("queued", "waiting", "running", "paused")

#: Of which less is better; of the others, more.
_LESS_IS_BETTER = ("loss", "mse", "rmse", "mae")

Outcome = Literal["unfinished", "succeeded", "pruned", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRow:
    """What a search asks for, beyond what its trainings have in common."""

    job_id: int
    space: Mapping[str, Mapping[str, Any]]
    method: str
    trials: int
    max_parallel: int
    metric: str

    @property
    def more_is_better(self) -> bool:
        """Whether the metric is to be made large."""
        return self.metric not in _LESS_IS_BETTER


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRow:
    """A trial, and how far it is."""

    number: int
    job: int
    params: Mapping[str, Any]
    outcome: Outcome
    #: The metric in the end, or when it was pruned.
    value: float | None
    #: The metric after each epoch, from the first one.
    reports: tuple[float, ...]
    #: Why it failed, if it did; a trial that was cancelled failed with 57014.
    error_sqlstate: str | None
    error_message: str | None
    error_hint: str | None
    #: Of its model, where that is kept.
    model_id: int | None
    model_version: int | None
    result: Mapping[str, Any] | None


def find(conn: Connection, search: int) -> SearchRow | None:
    """Return what a search asks for."""
    c = schema.search_requests.c
    query = select(*(c[field.name] for field in fields(SearchRow))).where(c.job_id == search)
    row = conn.execute(query).one_or_none()
    return None if row is None else SearchRow(**row._asdict())


def find_of_trial(conn: Connection, search: int) -> tuple[SearchRow, int, int] | None:
    """Return what a search asks for, its seed, and the epochs of trials where they do not vary."""
    row = find(conn, search)
    j = schema.jobs.c
    own = conn.execute(select(j.seed, j.epochs).where(j.id == search)).one_or_none()
    return None if row is None or own is None else (row, own.seed, own.epochs or 1)


def trials(conn: Connection, search: int) -> list[TrialRow]:
    """Return the trials of a search, by number.  Takes no lock."""
    t, j, m = schema.search_trials.c, schema.jobs.c, schema.training_metrics.c
    metric = select(schema.search_requests.c.metric).where(schema.search_requests.c.job_id == search)
    values = select(t.number, m.value).join_from(
        schema.search_trials, schema.training_metrics, m.job_id == t.job_id
    )
    reported: dict[int, list[float]] = {}
    for number, value in conn.execute(
        values.where(
            t.search_id == search, m.split == "validation", m.metric == metric.scalar_subquery()
        ).order_by(t.number, m.epoch, m.id)
    ):
        reported.setdefault(number, []).append(value)
    outcome: ColumnElement[str] = case(
        (j.state.in_(UNFINISHED), "unfinished"),
        (j.state == "succeeded", "succeeded"),
        (t.pruned_reason.is_not(None), "pruned"),
        else_="failed",
    )
    query = (
        select(
            t.number,
            t.job_id.label("job"),
            t.params,
            outcome.label("outcome"),
            t.value,
            j.error_sqlstate,
            j.error_message,
            j.error_hint,
            j.model_id,
            j.model_version,
            j.result,
        )
        .join_from(schema.search_trials, schema.jobs, j.id == t.job_id)
        .where(t.search_id == search)
        .order_by(t.number)
    )
    return [
        TrialRow(**row._asdict(), reports=tuple(reported.get(row.number, ()))) for row in conn.execute(query)
    ]


def counts(conn: Connection, search: int) -> tuple[int, int]:
    """Return how many trials a search has begun, and how many of them have not ended.  Takes no lock."""
    j = schema.jobs.c
    unfinished = func.count().filter(j.state.in_(UNFINISHED))
    row = conn.execute(select(func.count(), unfinished).where(j.search_id == search)).one()
    return int(row[0]), int(row[1])


def begin_trial(
    conn: Connection,
    fence: Fence,
    search: JobRow,
    *,
    number: int,
    params: Mapping[str, Any],
    request: Mapping[str, Any],
) -> int:
    """Queue a training as the next trial of a search; return its job.

    request: its columns of tensile.jobs where they are not the search's.
    Raises LostLease, and the database's error where a quota has no room for it (53400, 55P03).
    """
    hold(conn, fence)
    j = schema.jobs.c
    # It may have been changed since the search was claimed.
    priority = select(j.priority).where(j.id == search.id).scalar_subquery()
    job = conn.execute(
        insert(schema.jobs)
        .values(
            kind="train",
            submitted_by=search.submitted_by,
            owner=search.owner,
            source_oid=search.source_oid,
            source_name=search.source_name,
            target=search.target,
            features=search.features,
            model=search.model,
            validation=search.validation,
            priority=priority,
            memory_limit_nbytes=search.memory_limit_nbytes,
            policy=search.policy,
            settings=search.settings,
            initial_model_id=search.initial_model_id,
            pretrained_id=search.pretrained_id,
            search_id=search.id,
            **request,
        )
        .returning(j.id)
    ).scalar_one()
    conn.execute(
        insert(schema.search_trials).values(
            search_id=search.id, number=number, job_id=job, params=dict(params)
        )
    )
    events.add(conn, search.id, "trial", {"trial": number, "job": job})
    return int(job)


def cancel_trials(conn: Connection, search: int) -> int:
    """Ask for the end of a search's trials; return how many there are that have not ended."""
    j = schema.jobs.c
    of_search = (j.search_id == search, j.state.in_(UNFINISHED))
    conn.execute(update(schema.jobs).where(*of_search, ~j.cancel_requested).values(cancel_requested=True))
    return int(conn.execute(select(func.count()).where(*of_search)).scalar_one())


def prune(conn: Connection, fence: Fence, *, reason: str, value: float) -> None:
    """End a trial early, as cancelled; value: its metric by then.  Raises LostLease."""
    t = schema.search_trials
    conn.execute(update(t).where(t.c.job_id == fence.job).values(pruned_reason=reason, value=value))
    jobs.cancel(conn, fence, reason=f"pruned: {reason}")


def finish_trial(conn: Connection, search: SearchRow, *, job: int, value: float) -> bool:
    """Keep a trial's value; tell whether its model is to be kept, for which those of beaten ones are removed.

    Holds back the search's other trials that finish until the transaction ends.
    Of equal trials the one that was begun first is the better.
    """
    t, j = schema.search_trials.c, schema.jobs.c
    key = f"tensile search {search.job_id}"
    conn.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(key, 0))))
    number = conn.execute(
        update(schema.search_trials).where(t.job_id == job).values(value=value).returning(t.number)
    ).scalar_one()
    others: Sequence[Any] = conn.execute(
        select(t.number, t.value, t.job_id)
        .join_from(schema.search_trials, schema.jobs, j.id == t.job_id)
        .where(t.search_id == search.job_id, t.job_id != job, j.state == "succeeded", t.value.is_not(None))
    ).all()
    sign = -1.0 if search.more_is_better else 1.0
    if any((sign * other.value, other.number) < (sign * value, number) for other in others):
        return False
    beaten = [other.job_id for other in others]
    # A pinned model is in use, whatever the search finds.
    m = schema.models.c
    removed = delete(schema.models).where(m.job_id.in_(beaten), m.pinned.is_(False)).returning(m.job_id)
    jobs_of_removed = conn.execute(removed).scalars().all()
    conn.execute(
        update(schema.jobs).where(j.id.in_(jobs_of_removed)).values(model_id=None, model_version=None)
    )
    return True
