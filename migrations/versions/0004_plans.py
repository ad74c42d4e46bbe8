"""Plans."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "memory_peaks",
        sa.Column(
            "id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="Orders the rows."
        ),
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column("plan_version", sa.Integer(), nullable=True, comment="The plan."),
        sa.Column("iteration", sa.BigInteger(), nullable=False, comment="The iteration."),
        sa.Column(
            "peak_nbytes",
            sa.BigInteger(),
            nullable=False,
            comment="The most that this job held in it, in bytes.",
        ),
        sa.Column(
            "planned_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="What the plan predicted, in bytes.",
        ),
        sa.Column(
            "guaranteed_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="What the plan guarantees, in bytes.",
        ),
        sa.Column(
            "device_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The most that all jobs together held, in bytes.",
        ),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was measured.",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("memory_peaks_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("memory_peaks_pkey")),
        schema="tensile",
        comment="Measured peaks: the first iteration, each change of plan, each epoch, and each new maximum.",
    )
    op.create_index(
        "memory_peaks_job_id_idx", "memory_peaks", ["job_id", "iteration"], unique=False, schema="tensile"
    )
    op.create_table(
        "plans",
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column(
            "version", sa.Integer(), autoincrement=False, nullable=False, comment="From 1, a plan each."
        ),
        sa.Column("policy", sa.Text(), nullable=False, comment="Which planner made it."),
        sa.Column("reason", sa.Text(), nullable=False, comment="Why it was made."),
        sa.Column("graph_digest", sa.Text(), nullable=True, comment="The graph it is for."),
        sa.Column("budget_nbytes", sa.BigInteger(), nullable=True, comment="What it had to meet, in bytes."),
        sa.Column(
            "vanilla_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The peak of eager PyTorch, in bytes.",
        ),
        sa.Column("peak_nbytes", sa.BigInteger(), nullable=True, comment="The peak it predicts, in bytes."),
        sa.Column(
            "guaranteed_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The most it can hold, whatever the latencies turn out to be.",
        ),
        sa.Column(
            "lower_bound_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="No plan can do with less, in bytes.",
        ),
        sa.Column(
            "vanilla_time_ns", sa.BigInteger(), nullable=True, comment="An iteration of eager PyTorch, in ns."
        ),
        sa.Column("time_ns", sa.BigInteger(), nullable=True, comment="An iteration by this plan, in ns."),
        sa.Column(
            "lower_bound_time_ns", sa.BigInteger(), nullable=True, comment="No plan can be faster, in ns."
        ),
        sa.Column("swap_out_count", sa.BigInteger(), nullable=True, comment="Swap-outs an iteration."),
        sa.Column("swap_nbytes", sa.BigInteger(), nullable=True, comment="Bytes swapped out an iteration."),
        sa.Column("recompute_count", sa.BigInteger(), nullable=True, comment="Ops run again an iteration."),
        sa.Column(
            "planning_ns", sa.BigInteger(), nullable=True, comment="How long the planning took, in ns."
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was made.",
        ),
        sa.Column(
            "adopted_at_iteration",
            sa.BigInteger(),
            nullable=True,
            comment="The first iteration that ran by it; NULL: none yet.",
        ),
        sa.Column(
            "order",
            postgresql.ARRAY(sa.Integer()),
            nullable=True,
            comment="The ops in the order in which they run.",
        ),
        sa.CheckConstraint(
            "reason IN ('cold_start', 'arrival', 'departure', 'drift', 'resume')",
            name=op.f("plans_reason_check"),
        ),
        sa.ForeignKeyConstraint(
            ["graph_digest"], ["tensile.graphs.digest"], name=op.f("plans_graph_digest_fkey")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("plans_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "version", name=op.f("plans_pkey")),
        schema="tensile",
        comment="Every plan of every job, and why it was made.",
    )
    op.create_table(
        "training_metrics",
        sa.Column(
            "id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="Orders the rows."
        ),
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column("epoch", sa.Integer(), nullable=False, comment="The epoch, from 1."),
        sa.Column("iteration", sa.BigInteger(), nullable=True, comment="Iterations done by then."),
        sa.Column("split", sa.Text(), nullable=False, comment="On which rows."),
        sa.Column("metric", sa.Text(), nullable=False, comment="loss, accuracy, mse, mae, ..."),
        sa.Column("value", sa.Double(), nullable=False, comment="Its value."),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was measured.",
        ),
        sa.CheckConstraint("split IN ('train', 'validation')", name=op.f("training_metrics_split_check")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("training_metrics_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("training_metrics_pkey")),
        schema="tensile",
        comment="How well each job learns, epoch by epoch.",
    )
    op.create_index(
        "training_metrics_job_id_idx", "training_metrics", ["job_id", "epoch"], unique=False, schema="tensile"
    )
    op.create_table(
        "memory_timeline_points",
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column("version", sa.Integer(), nullable=False, comment="The plan."),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="The point's place in time, from 0."),
        sa.Column("at_ns", sa.BigInteger(), nullable=False, comment="From the iteration's start, in ns."),
        sa.Column("nbytes", sa.BigInteger(), nullable=False, comment="Held from then on, in bytes."),
        sa.ForeignKeyConstraint(
            ["job_id", "version"],
            ["tensile.plans.job_id", "tensile.plans.version"],
            name=op.f("memory_timeline_points_job_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "version", "ordinal", name=op.f("memory_timeline_points_pkey")),
        schema="tensile",
        comment="What each plan predicts to be held on the device over one iteration.",
    )
    op.create_table(
        "plan_events",
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column("version", sa.Integer(), nullable=False, comment="The plan."),
        sa.Column("ordinal", sa.Integer(), nullable=False, comment="The event's place in the plan, from 0."),
        sa.Column("kind", sa.Text(), nullable=False, comment="What is done."),
        sa.Column("tensor", sa.Integer(), nullable=True, comment="With which tensor."),
        sa.Column(
            "trigger_op",
            sa.Integer(),
            nullable=True,
            comment="A copy waits for its end; NULL: for the iteration's start.",
        ),
        sa.Column(
            "delta_ns",
            sa.BigInteger(),
            nullable=True,
            comment="How much later than its trigger a copy may start, in ns.",
        ),
        sa.Column(
            "before_op",
            sa.Integer(),
            nullable=True,
            comment="A recompute or wait comes before it; NULL: at the end.",
        ),
        sa.Column("after_op", sa.Integer(), nullable=True, comment="A release comes after it."),
        sa.Column(
            "ops", postgresql.ARRAY(sa.Integer()), nullable=True, comment="The ops that run again, in order."
        ),
        sa.CheckConstraint(
            "kind IN ('swap_out', 'swap_in', 'recompute', 'wait', 'release')",
            name=op.f("plan_events_kind_check"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id", "version"],
            ["tensile.plans.job_id", "tensile.plans.version"],
            name=op.f("plan_events_job_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "version", "ordinal", name=op.f("plan_events_pkey")),
        schema="tensile",
        comment="What each plan does around the ops.",
    )
    for table in ("plans", "plan_events", "memory_timeline_points", "memory_peaks", "training_metrics"):
        op.execute(f"ALTER TABLE tensile.{table} ENABLE ROW LEVEL SECURITY")
