"""Latency models, and the samples that they were learned from."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "latency_samples",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="The sample."),
        sa.Column(
            "hardware",
            sa.Text(),
            nullable=False,
            comment="What it was measured on: processor or GPU, threads, PyTorch's version.",
        ),
        sa.Column("kind", sa.Text(), nullable=False, comment="The kind of op: the ATen operator."),
        sa.Column(
            "probe", sa.Integer(), nullable=False, comment="The small network that the op was part of."
        ),
        sa.Column(
            "features",
            postgresql.JSONB(),
            nullable=False,
            comment="Sizes, as logarithms to base 2, and parameters of the op, by name.",
        ),
        sa.Column("flops", sa.BigInteger(), nullable=False, comment="The op's floating point operations."),
        sa.Column(
            "moved_nbytes",
            sa.BigInteger(),
            nullable=False,
            comment="What it reads and writes of device memory, in bytes.",
        ),
        sa.Column(
            "utilization",
            sa.Double(),
            nullable=False,
            comment="The share of the device's arithmetic that others asked for meanwhile, from 0 to 1.",
        ),
        sa.Column(
            "latency_ns", sa.BigInteger(), nullable=False, comment="The median of several runs, in ns."
        ),
        sa.Column(
            "measured_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was measured.",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("latency_samples_pkey")),
        schema="tensile",
        comment="Ops measured by tensile-db calibrate, or by an idle worker.",
    )
    op.create_index(
        "latency_samples_hardware_idx",
        "latency_samples",
        ["hardware", "probe"],
        unique=False,
        schema="tensile",
    )
    op.create_table(
        "latency_models",
        sa.Column(
            "hardware",
            sa.Text(),
            nullable=False,
            comment="What it holds for: processor or GPU, threads, PyTorch's version.",
        ),
        sa.Column("kind", sa.Text(), nullable=False, comment="The kind of op: the ATen operator."),
        sa.Column(
            "network",
            postgresql.JSONB(none_as_null=True),
            nullable=True,
            comment="The perceptron and the range it knows; NULL where too few shapes were measured.",
        ),
        sa.Column(
            "roofline_scale",
            sa.Double(),
            nullable=False,
            comment="Measured latency over the roofline's, for ops that the network does not know.",
        ),
        sa.Column("sample_count", sa.Integer(), nullable=False, comment="Samples it was learned from."),
        sa.Column("held_out_count", sa.Integer(), nullable=True, comment="Samples that the errors are of."),
        sa.Column(
            "r_squared",
            sa.Double(),
            nullable=True,
            comment="Share of the variance of latencies explained, on shapes held out.",
        ),
        sa.Column(
            "r_squared_log",
            sa.Double(),
            nullable=True,
            comment="The same of the latencies' logarithms.",
        ),
        sa.Column(
            "median_relative_error",
            sa.Double(),
            nullable=True,
            comment="Median of |predicted - measured| / measured, on shapes held out.",
        ),
        sa.Column(
            "trained_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was learned.",
        ),
        sa.PrimaryKeyConstraint("hardware", "kind", name=op.f("latency_models_pkey")),
        schema="tensile",
        comment="What is known of the latency of each kind of op before a job has run.",
    )
    for table in ("latency_samples", "latency_models"):
        op.execute(f"ALTER TABLE tensile.{table} ENABLE ROW LEVEL SECURITY")
