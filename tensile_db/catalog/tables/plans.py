"""Plans and what came of them: events, memory over time, peaks and metrics."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from tensile_db.catalog.tables.base import SCHEMA, count, instant, job_id, metadata, one_of

plans = Table(
    "plans",
    metadata,
    job_id(primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False, comment="From 1, a plan each."),
    Column("policy", Text, nullable=False, comment="Which planner made it."),
    Column("reason", Text, nullable=False, comment="Why it was made."),
    Column("graph_digest", ForeignKey(f"{SCHEMA}.graphs.digest"), comment="The graph it is for."),
    Column(
        "captured_digest",
        ForeignKey(f"{SCHEMA}.graphs.digest"),
        comment="The captured graph, from which the plan's was packed or split; the same where none was.",
    ),
    count("budget_nbytes", "What it had to meet, in bytes."),
    count("vanilla_peak_nbytes", "The peak of eager PyTorch, in bytes."),
    count("peak_nbytes", "The peak it predicts, in bytes."),
    count("guaranteed_peak_nbytes", "The most it can hold, whatever the latencies turn out to be."),
    count("lower_bound_peak_nbytes", "No plan of whole ops, nothing packed, can do with less, in bytes."),
    count("vanilla_time_ns", "An iteration of eager PyTorch, in ns."),
    count("time_ns", "An iteration by this plan, in ns."),
    count("lower_bound_time_ns", "No plan can be faster, in ns."),
    count("swap_out_count", "Swap-outs an iteration."),
    count("swap_nbytes", "Bytes swapped out an iteration."),
    count("recompute_count", "Ops run again an iteration."),
    count("planning_ns", "How long the planning took, in ns."),
    instant("created_at", "When it was made.", now=True),
    count("adopted_at_iteration", "The first iteration that ran by it; NULL: none yet."),
    Column("order", ARRAY(Integer), comment="The ops in the order in which they run."),
    Column(
        "run_ops",
        ARRAY(Integer),
        comment="The op of each run in an iteration, in time's order; NULL in older plans.",
    ),
    Column(
        "run_begin_ns",
        ARRAY(BigInteger),
        comment="When each run begins, as predicted, in ns from the iteration's start.",
    ),
    Column("run_end_ns", ARRAY(BigInteger), comment="When each run ends."),
    Column("run_recomputes", ARRAY(Boolean), comment="Whether a run is a recomputation."),
    one_of("reason", "cold_start", "arrival", "departure", "drift", "resume", "use", "improvement"),
    # Whoever removes a graph looks for its plans.
    Index("plans_graph_digest_idx", "graph_digest"),
    Index("plans_captured_digest_idx", "captured_digest"),
    comment="Every plan of every job, and why it was made.",
)


def _of_plan() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["job_id", "version"], [plans.c.job_id, plans.c.version], ondelete="CASCADE")


plan_events = Table(
    "plan_events",
    metadata,
    Column("job_id", BigInteger, comment="The job."),
    Column("version", Integer, comment="The plan."),
    Column("ordinal", Integer, comment="The event's place in the plan, from 0."),
    Column("kind", Text, nullable=False, comment="What is done."),
    Column("tensor", Integer, comment="With which tensor."),
    Column("trigger_op", Integer, comment="A copy waits for its end; NULL: for the iteration's start."),
    count("delta_ns", "How much later than its trigger a copy may start, in ns."),
    Column("before_op", Integer, comment="A recompute or wait comes before it; NULL: at the end."),
    Column("after_op", Integer, comment="A release comes after it."),
    Column("ops", ARRAY(Integer), comment="The ops that run again, in order."),
    count(
        "begin_ns",
        "When a copy begins, as predicted, in ns from the iteration's start; NULL in older plans.",
    ),
    count(
        "end_ns",
        "When it ends, maybe later than the iteration; when it begins, where nothing is copied.",
    ),
    PrimaryKeyConstraint("job_id", "version", "ordinal"),
    _of_plan(),
    one_of("kind", "swap_out", "swap_in", "recompute", "wait", "release"),
    comment="What each plan does around the ops.",
)

memory_timeline_points = Table(
    "memory_timeline_points",
    metadata,
    Column("job_id", BigInteger, comment="The job."),
    Column("version", Integer, comment="The plan."),
    Column("ordinal", Integer, comment="The point's place in time, from 0."),
    count("at_ns", "From the iteration's start, in ns.", nullable=False),
    count("nbytes", "Held from then on, in bytes.", nullable=False),
    PrimaryKeyConstraint("job_id", "version", "ordinal"),
    _of_plan(),
    comment="What each plan predicts to be held on the device over one iteration.",
)

memory_peaks = Table(
    "memory_peaks",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="Orders the rows."),
    job_id(),
    Column("plan_version", Integer, comment="The plan."),
    count("iteration", "The iteration.", nullable=False),
    count("peak_nbytes", "The most that this job held in it, in bytes.", nullable=False),
    count("planned_peak_nbytes", "What the plan predicted, in bytes."),
    count("guaranteed_peak_nbytes", "What the plan guarantees, in bytes."),
    count("device_peak_nbytes", "The most that all jobs together held since the worker began, in bytes."),
    instant("at", "When it was measured.", now=True),
    Index("memory_peaks_job_id_idx", "job_id", "iteration"),
    comment="Measured peaks: the first iteration, each change of plan, each epoch, and each new maximum.",
)

training_metrics = Table(
    "training_metrics",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="Orders the rows."),
    job_id(),
    Column("epoch", Integer, nullable=False, comment="The epoch, from 1."),
    count("iteration", "Iterations done by then."),
    Column("split", Text, nullable=False, comment="On which rows."),
    Column("metric", Text, nullable=False, comment="loss, accuracy, mse, mae, loss_scale, ..."),
    Column("value", Double, nullable=False, comment="Its value."),
    instant("at", "When it was measured.", now=True),
    one_of("split", "train", "validation"),
    Index("training_metrics_job_id_idx", "job_id", "epoch"),
    comment="How well each job learns, epoch by epoch.",
)
