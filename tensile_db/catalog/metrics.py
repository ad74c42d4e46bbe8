"""How well jobs learn, and what they really hold on the device.  The caller owns the transaction."""

from collections.abc import Mapping

from sqlalchemy import Connection, delete, insert, select

from tensile_db.catalog import schema
from tensile_db.catalog.fence import Fence, hold


def add(
    conn: Connection, fence: Fence, *, epoch: int, iteration: int, split: str, values: Mapping[str, float]
) -> None:
    """Write metrics of an epoch (from 1), with the iterations done by then.  Raises LostLease."""
    hold(conn, fence)
    rows = [
        {
            "job_id": fence.job,
            "epoch": epoch,
            "iteration": iteration,
            "split": split,
            "metric": metric,
            "value": value,
        }
        for metric, value in values.items()
    ]
    if rows:
        conn.execute(insert(schema.training_metrics), rows)


def add_peak(
    conn: Connection,
    fence: Fence,
    *,
    plan_version: int,
    iteration: int,
    peak_nbytes: int,
    planned_peak_nbytes: int,
    guaranteed_peak_nbytes: int,
    device_peak_nbytes: int,
) -> None:
    """Write what the job held at most in an iteration (from 1).  Raises LostLease."""
    hold(conn, fence)
    conn.execute(
        insert(schema.memory_peaks).values(
            job_id=fence.job,
            plan_version=plan_version,
            iteration=iteration,
            peak_nbytes=peak_nbytes,
            planned_peak_nbytes=planned_peak_nbytes,
            guaranteed_peak_nbytes=guaranteed_peak_nbytes,
            device_peak_nbytes=device_peak_nbytes,
        )
    )


def forget_after(conn: Connection, fence: Fence, iteration: int, *, captured_digest: str) -> None:
    """Remove what an earlier attempt wrote of iterations that are about to be run again.

    captured_digest: of the graph that they run; another stage's have numbers of their own.
    Raises LostLease.
    """
    hold(conn, fence)
    metrics, peaks, plans = schema.training_metrics, schema.memory_peaks, schema.plans
    conn.execute(delete(metrics).where(metrics.c.job_id == fence.job, metrics.c.iteration > iteration))
    versions = select(plans.c.version).where(
        plans.c.job_id == fence.job, plans.c.captured_digest == captured_digest
    )
    conn.execute(
        delete(peaks).where(
            peaks.c.job_id == fence.job, peaks.c.iteration > iteration, peaks.c.plan_version.in_(versions)
        )
    )
