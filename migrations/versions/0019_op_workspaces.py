"""Workspaces of ops, as they were measured."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "op_workspaces",
        sa.Column(
            "hardware",
            sa.Text(),
            nullable=False,
            comment="What it was measured on: the GPU's model, and the versions of PyTorch, CUDA and cuDNN.",
        ),
        sa.Column("digest", sa.Text(), nullable=False, comment="Of kind and signature."),
        sa.Column("kind", sa.Text(), nullable=False, comment="The kind of op: the ATen operator."),
        sa.Column(
            "signature",
            postgresql.JSONB(),
            nullable=False,
            comment="What else decides: arguments and results, tensors by dtype, size and stride.",
        ),
        sa.Column(
            "workspace_nbytes",
            sa.BigInteger(),
            nullable=False,
            comment="The most that its kernels held beyond tensors, in bytes.",
        ),
        sa.Column(
            "measured_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was measured.",
        ),
        sa.PrimaryKeyConstraint("hardware", "digest", name=op.f("op_workspaces_pkey")),
        schema="tensile",
        comment="Device memory that kernels need beyond their tensors, measured before a job is planned.",
    )
    op.execute("ALTER TABLE tensile.op_workspaces ENABLE ROW LEVEL SECURITY")
