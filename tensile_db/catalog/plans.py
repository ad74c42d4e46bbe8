"""Plans as rows: the plan, its events, and the memory that it predicts.  The caller owns the transaction."""

from collections.abc import Iterator, Sequence
from typing import Any, assert_never

from sqlalchemy import Connection, func, insert, select

from tensile_db.catalog import events, schema
from tensile_db.catalog.fence import Fence, hold
from tensile_db.catalog.many_rows import insert_rows
from tensile_db.graph import StepGraph
from tensile_db.scheduler.plan import Event, Recompute, Release, SwapIn, SwapOut, Wait
from tensile_db.scheduler.request import JobPlan
from tensile_db.scheduler.seeing.spans import spans_of_events

#: Points of one plan's memory curve; the peaks of a longer one are kept.
MAX_POINTS = 2000

_EVENT_COLUMNS = (
    "job_id",
    "version",
    "ordinal",
    "kind",
    "tensor",
    "trigger_op",
    "delta_ns",
    "before_op",
    "after_op",
    "ops",
    "begin_ns",
    "end_ns",
)
_EVENT_TYPES = (
    *("int8", "int4", "int4", "text", "int4", "int4", "int8", "int4", "int4", "int4[]"),
    *("int8", "int8"),
)


def add(
    conn: Connection,
    fence: Fence,
    plan: JobPlan,
    *,
    version: int,
    graph: StepGraph,
    captured_digest: str,
    reason: str,
    budget_nbytes: int,
    planning_ns: int,
    adopted_at_iteration: int,
) -> None:
    """Write a plan that the job has taken up.

    captured_digest: of what its graph was made of.  Both graphs' rows must be there.  Raises LostLease.
    """
    hold(conn, fence)
    said = plan.prediction
    swapped_out = plan.timeline.swap_outs
    run_ops, run_begin_ns, run_end_ns, run_recomputes = plan.timeline.runs.T
    conn.execute(
        insert(schema.plans).values(
            job_id=fence.job,
            version=version,
            policy=plan.plan.policy,
            reason=reason,
            graph_digest=graph.digest,
            captured_digest=captured_digest,
            budget_nbytes=budget_nbytes,
            vanilla_peak_nbytes=said.vanilla_peak_nbytes,
            peak_nbytes=said.peak_nbytes,
            guaranteed_peak_nbytes=said.guaranteed_peak_nbytes,
            lower_bound_peak_nbytes=said.lower_bound_peak_nbytes,
            vanilla_time_ns=said.vanilla_time_ns,
            time_ns=said.time_ns,
            lower_bound_time_ns=said.lower_bound_time_ns,
            swap_out_count=len(swapped_out),
            swap_nbytes=sum(graph.tensors[copy.tensor].nbytes for copy in swapped_out),
            recompute_count=sum(len(event.ops) for event in plan.plan.events if isinstance(event, Recompute)),
            planning_ns=planning_ns,
            adopted_at_iteration=adopted_at_iteration,
            order=list(plan.plan.order),
            run_ops=run_ops.tolist(),
            run_begin_ns=run_begin_ns.tolist(),
            run_end_ns=run_end_ns.tolist(),
            run_recomputes=run_recomputes.astype(bool).tolist(),
        )
    )
    events.add(
        conn,
        fence.job,
        "plan_adopted",
        {"version": version, "reason": reason, "iteration": adopted_at_iteration},
    )
    key, spans = (fence.job, version), spans_of_events(plan.plan, plan.timeline)
    insert_rows(
        conn,
        schema.plan_events,
        _EVENT_COLUMNS,
        _EVENT_TYPES,
        (
            (*key, ordinal, *_event_values(event), *(span or (None, None)))
            for ordinal, (event, span) in enumerate(zip(plan.plan.events, spans, strict=True))
        ),
    )
    insert_rows(
        conn,
        schema.memory_timeline_points,
        ("job_id", "version", "ordinal", "at_ns", "nbytes"),
        ("int8", "int4", "int4", "int8", "int8"),
        ((*key, ordinal, *point) for ordinal, point in enumerate(thin_out(plan.timeline.memory))),
    )


def newest_version(conn: Connection, job: int) -> int:
    """Return the version of a job's newest plan; 0 if it never had one."""
    plans = schema.plans.c
    query = select(func.coalesce(func.max(plans.version), 0)).where(plans.job_id == job)
    return int(conn.execute(query).scalar_one())


def thin_out(points: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield at most MAX_POINTS points of a curve: of each stretch of it, the highest."""
    stretch = -(-len(points) // MAX_POINTS)
    for begin in range(0, len(points), max(stretch, 1)):
        yield max(points[begin : begin + stretch], key=lambda point: point[1])


def _event_values(event: Event) -> tuple[Any, ...]:
    """Return kind, tensor, trigger_op, delta_ns, before_op, after_op, ops."""
    match event:
        case SwapOut():
            return ("swap_out", event.tensor, event.trigger_op, event.delta_ns, None, None, None)
        case SwapIn():
            return ("swap_in", event.tensor, event.trigger_op, event.delta_ns, None, None, None)
        case Recompute():
            return ("recompute", event.tensor, None, None, event.before_op, None, list(event.ops))
        case Wait():
            return ("wait", event.tensor, None, None, event.before_op, None, None)
        case Release():
            return ("release", event.tensor, None, None, None, event.after_op, None)
        case _:
            assert_never(event)
