"""Graphs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "graphs",
        sa.Column("digest", sa.Text(), nullable=False, comment="Of all that the graph consists of."),
        sa.Column("architecture", sa.Text(), nullable=False, comment="The network."),
        sa.Column("batch_size", sa.Integer(), nullable=False, comment="Rows an iteration."),
        sa.Column(
            "image_size", sa.Integer(), nullable=True, comment="Pixels a side; NULL where there is no image."
        ),
        sa.Column("optimizer", sa.Text(), nullable=True, comment="NULL for a step that only goes forward."),
        sa.Column("tensor_count", sa.Integer(), nullable=False, comment="How many tensors."),
        sa.Column("op_count", sa.Integer(), nullable=False, comment="How many ops."),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was first captured.",
        ),
        sa.PrimaryKeyConstraint("digest", name=op.f("graphs_pkey")),
        schema="tensile",
        comment="Captured steps, shared by all jobs with the same one.",
    )
    op.create_table(
        "graph_ops",
        sa.Column("digest", sa.Text(), nullable=False, comment="The graph."),
        sa.Column("op_id", sa.Integer(), nullable=False, comment="The op, in eager's order."),
        sa.Column("target", sa.Text(), nullable=False, comment="The ATen operator."),
        sa.Column("phase", sa.Text(), nullable=False, comment="Where in the step it stands."),
        sa.Column("reads", postgresql.ARRAY(sa.Integer()), nullable=False, comment="The tensors it reads."),
        sa.Column("writes", postgresql.ARRAY(sa.Integer()), nullable=False, comment="The tensors it writes."),
        sa.Column(
            "workspace_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="What it holds only while it runs, in bytes.",
        ),
        sa.Column("flops", sa.BigInteger(), nullable=True, comment="Its floating point operations."),
        sa.Column(
            "moved_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="What it reads and writes of device memory, in bytes.",
        ),
        sa.Column("recomputable", sa.Boolean(), nullable=False, comment="Whether it may be run again."),
        sa.CheckConstraint(
            "phase IN ('forward', 'backward', 'optimizer')", name=op.f("graph_ops_phase_check")
        ),
        sa.ForeignKeyConstraint(
            ["digest"], ["tensile.graphs.digest"], name=op.f("graph_ops_digest_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", "op_id", name=op.f("graph_ops_pkey")),
        schema="tensile",
        comment="The ops of each graph, in order.",
    )
    op.create_table(
        "graph_tensors",
        sa.Column("digest", sa.Text(), nullable=False, comment="The graph."),
        sa.Column("tensor_id", sa.Integer(), nullable=False, comment="The tensor: a storage."),
        sa.Column("nbytes", sa.BigInteger(), nullable=False, comment="Its size in bytes."),
        sa.Column("dtype", sa.Text(), nullable=False, comment="Its elements."),
        sa.Column(
            "shape", postgresql.ARRAY(sa.BigInteger()), nullable=False, comment="Its size in elements."
        ),
        sa.Column("role", sa.Text(), nullable=False, comment="What it is for."),
        sa.Column(
            "persistent",
            sa.Boolean(),
            nullable=False,
            comment="Whether it lives from iteration to iteration.",
        ),
        sa.Column("name", sa.Text(), nullable=True, comment="The name of a persistent one."),
        sa.CheckConstraint(
            "role IN ('parameter', 'buffer', 'optimizer_state', 'input', 'activation', 'gradient', 'output')",
            name=op.f("graph_tensors_role_check"),
        ),
        sa.ForeignKeyConstraint(
            ["digest"], ["tensile.graphs.digest"], name=op.f("graph_tensors_digest_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("digest", "tensor_id", name=op.f("graph_tensors_pkey")),
        schema="tensile",
        comment="The tensors of each graph.",
    )
    op.create_table(
        "latency_logs",
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column(
            "op_id", sa.Integer(), autoincrement=False, nullable=False, comment="The op of the job's graph."
        ),
        sa.Column("plan_version", sa.Integer(), nullable=True, comment="The plan it last ran under."),
        sa.Column(
            "measured_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was last measured.",
        ),
        sa.Column("iteration", sa.BigInteger(), nullable=True, comment="In which iteration that was."),
        sa.Column("latency_ns", sa.BigInteger(), nullable=True, comment="The newest measurement, in ns."),
        sa.Column("ewma_ns", sa.BigInteger(), nullable=True, comment="Its moving average, in ns."),
        sa.Column(
            "predicted_ns",
            sa.BigInteger(),
            nullable=True,
            comment="What was predicted before the job ever ran, in ns.",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("latency_logs_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "op_id", name=op.f("latency_logs_pkey")),
        schema="tensile",
        comment="How long each op of each job takes: one row an op, updated as it is sampled.",
    )
    op.create_index(
        "latency_logs_measured_at_idx", "latency_logs", ["measured_at"], unique=False, schema="tensile"
    )
    for table in ("graphs", "graph_tensors", "graph_ops", "latency_logs"):
        op.execute(f"ALTER TABLE tensile.{table} ENABLE ROW LEVEL SECURITY")
