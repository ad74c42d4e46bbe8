"""What the catalog says of the demo's jobs, read back with the SQL that any user could write."""

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg.rows import class_row, scalar_row


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """A finished training job; sizes in bytes."""

    job_id: int
    architecture: str
    state: str
    seconds: float
    batch_size: int
    iterations: int
    loss: float | None
    accuracy: float | None
    #: Of eager PyTorch.
    vanilla_peak_nbytes: int
    #: Of that of its plans, of those that ran, which has the lowest peak; None where none ran.
    tightest_version: int | None
    planned_peak_nbytes: int
    measured_peak_nbytes: int
    budget_nbytes: int
    #: An iteration by that plan.
    swap_nbytes: int
    recompute_count: int
    #: Why its plans were made, in order.
    reasons: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """How well a job did after one epoch."""

    epoch: int
    loss: float | None
    validation_loss: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a plan's predicted memory timeline."""

    at_ns: int
    until_ns: int
    nbytes: int


_JOBS = """
SELECT
    j.id AS job_id, j.architecture, j.state, j.batch_size, coalesce(j.iteration, 0) AS iterations,
    extract(epoch FROM j.finished_at - j.created_at)::float8 AS seconds,
    j.loss,
    (SELECT value FROM tensile.training_metrics m
     WHERE m.job_id = j.id AND split = 'validation' AND metric = 'accuracy'
     ORDER BY id DESC LIMIT 1) AS accuracy,
    coalesce(j.vanilla_peak_nbytes, 0) AS vanilla_peak_nbytes,
    tightest.version AS tightest_version,
    coalesce(tightest.planned_peak_nbytes, 0) AS planned_peak_nbytes,
    coalesce(tightest.measured_peak_nbytes, 0) AS measured_peak_nbytes,
    coalesce(tightest.budget_nbytes, 0) AS budget_nbytes,
    coalesce(tightest.swap_nbytes, 0) AS swap_nbytes,
    coalesce(tightest.recompute_count, 0) AS recompute_count,
    ARRAY(SELECT reason FROM tensile.plans p WHERE p.job_id = j.id ORDER BY version) AS reasons
FROM tensile.jobs j
LEFT JOIN LATERAL (
    SELECT
        s.version, s.planned_peak_nbytes, s.measured_peak_nbytes, s.budget_nbytes, s.swap_nbytes,
        s.recompute_count
    FROM tensile.plan_summary s
    WHERE s.job_id = j.id AND s.measured_peak_nbytes IS NOT NULL
    ORDER BY s.planned_peak_nbytes, s.version LIMIT 1) tightest ON true
WHERE j.id = ANY (%s)
ORDER BY j.id
"""

_EPOCHS = """
SELECT
    epoch,
    max(value) FILTER (WHERE split = 'train' AND metric = 'loss') AS loss,
    max(value) FILTER (WHERE split = 'validation' AND metric = 'loss') AS validation_loss,
    max(value) FILTER (WHERE split = 'validation' AND metric = 'accuracy') AS accuracy
FROM tensile.training_metrics WHERE job_id = %s GROUP BY epoch ORDER BY epoch
"""


def newest_job(connection: psycopg.Connection) -> int:
    """Return the newest job's id, 0 where there is none."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        return int(cursor.execute("SELECT coalesce(max(id), 0) FROM tensile.jobs").fetchone() or 0)


def training_jobs_after(connection: psycopg.Connection, job: int) -> list[int]:
    """Return the ids of the training jobs that came after this one."""
    with connection.cursor(row_factory=scalar_row) as cursor:
        query = "SELECT id FROM tensile.jobs WHERE id > %s AND kind = 'train' ORDER BY id"
        return cursor.execute(query, [job]).fetchall()


def read_jobs(connection: psycopg.Connection, jobs: Sequence[int]) -> list[JobResult]:
    """Return what became of these jobs."""
    with connection.cursor(row_factory=class_row(JobResult)) as cursor:
        return cursor.execute(_JOBS, [list(jobs)]).fetchall()


def read_epochs(connection: psycopg.Connection, job: int) -> list[Epoch]:
    """Return how a job's loss and accuracy went."""
    with connection.cursor(row_factory=class_row(Epoch)) as cursor:
        return cursor.execute(_EPOCHS, [job]).fetchall()


def read_timeline(connection: psycopg.Connection, job: int, version: int | None) -> list[Span]:
    """Return one iteration of the job's memory by one of its plans; nothing where there is none."""
    query = (
        "SELECT at_ns, coalesce(until_ns, at_ns) AS until_ns, nbytes FROM tensile.memory_timeline"
        " WHERE job_id = %s AND version = %s ORDER BY ordinal"
    )
    with connection.cursor(row_factory=class_row(Span)) as cursor:
        return cursor.execute(query, [job, version]).fetchall()


def device_peak(connection: psycopg.Connection, jobs: Sequence[int]) -> int:
    """Return the most bytes that all jobs together had held by the end of these, since the worker began."""
    query = "SELECT coalesce(max(device_peak_nbytes), 0) FROM tensile.memory_peaks WHERE job_id = ANY (%s)"
    with connection.cursor(row_factory=scalar_row) as cursor:
        return int(cursor.execute(query, [list(jobs)]).fetchone() or 0)
