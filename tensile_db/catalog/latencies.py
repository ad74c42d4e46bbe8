"""Op latencies of jobs, a row an op.  The caller owns the transaction."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, literal, select
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT, insert

from tensile_db.catalog import schema
from tensile_db.catalog.fence import Fence, hold


def write(
    conn: Connection,
    fence: Fence,
    *,
    plan_version: int,
    iteration: int,
    latest_ns: Sequence[int | None],
    average_ns: Sequence[int],
    predicted_ns: Sequence[int],
) -> None:
    """Write the newest samples of the job's ops, each sequence by op id; ops never measured are left out.

    They are of the graph that the plan was made of.  What is known of another one goes: a job may go on under
    another version of tensile_db.  Raises LostLease.
    """
    hold(conn, fence)
    plans = schema.plans.c
    of_plan = select(plans.captured_digest).where(plans.job_id == fence.job, plans.version == plan_version)
    conn.execute(
        delete(schema.latency_logs).where(
            schema.latency_logs.c.job_id == fence.job,
            ~_is_of(fence.job, plans.captured_digest.is_not_distinct_from(of_plan.scalar_subquery())),
        )
    )
    measured = [op for op, sample_ns in enumerate(latest_ns) if sample_ns is not None]
    columns = [
        measured,
        [latest_ns[op] for op in measured],
        [average_ns[op] for op in measured],
        [predicted_ns[op] for op in measured],
    ]
    samples = (
        func.unnest(*(literal(column, ARRAY(BIGINT)) for column in columns))
        .table_valued("op_id", "latency_ns", "ewma_ns", "predicted_ns")
        .render_derived(name="sample")
    )
    logs = schema.latency_logs.c
    query = insert(schema.latency_logs).from_select(
        [
            "job_id",
            "op_id",
            "plan_version",
            "iteration",
            "measured_at",
            "latency_ns",
            "ewma_ns",
            "predicted_ns",
        ],
        select(
            literal(fence.job, BIGINT),
            samples.c.op_id,
            literal(plan_version),
            literal(iteration, BIGINT),
            func.now(),
            samples.c.latency_ns,
            samples.c.ewma_ns,
            samples.c.predicted_ns,
        ),
    )
    replaced = ("plan_version", "iteration", "measured_at", "latency_ns", "ewma_ns")
    conn.execute(
        query.on_conflict_do_update(
            index_elements=[logs.job_id, logs.op_id],
            set_={name: query.excluded[name] for name in replaced},
        )
    )


def newest(conn: Connection, job: int, captured_digest: str) -> dict[int, int]:
    """Return the moving averages of a job's ops, ns by op id, as far as they were measured in this graph."""
    logs = schema.latency_logs.c
    query = select(logs.op_id, logs.ewma_ns).where(
        logs.job_id == job,
        logs.ewma_ns.is_not(None),
        _is_of(job, schema.plans.c.captured_digest == captured_digest),
    )
    return {row.op_id: row.ewma_ns for row in conn.execute(query)}


def _is_of(job: int, graph: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that a measurement is of a plan of such a graph."""
    plans = schema.plans.c
    return schema.latency_logs.c.plan_version.in_(select(plans.version).where(plans.job_id == job, graph))
