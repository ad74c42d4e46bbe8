"""What workers offer, and what is known of where a job can go."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _add(
        "workers",
        sa.Column(
            "max_jobs",
            sa.Integer(),
            server_default="16",
            nullable=False,
            comment="Jobs that it holds at a time, at most; searches apart.",
        ),
        sa.Column(
            "runs_alone",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="It runs one job at a time.",
        ),
        sa.Column(
            "lease_s",
            sa.Double(),
            server_default="30",
            nullable=False,
            comment="It is taken for lost when nothing was heard of it for so many seconds.",
        ),
        sa.Column(
            "cache",
            sa.Text(),
            server_default="",
            nullable=False,
            comment="Where it keeps rows that its jobs have read: machine and folder.",
        ),
    )
    _add(
        "devices",
        sa.Column(
            "shared_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="What the shares of its jobs take at present, in bytes.",
        ),
    )
    _add(
        "jobs",
        sa.Column(
            "needed_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The least device memory that would do, in bytes, once a device has been too small.",
        ),
        sa.Column(
            "rows_cache",
            sa.Text(),
            nullable=True,
            comment="Where the rows that it has read are kept: machine and folder.",
        ),
        sa.Column(
            "meant_for",
            sa.BigInteger(),
            nullable=True,
            comment="The worker for which another has given it back; others leave it to that one a while.",
        ),
    )
    # What is known of a job's size are the peaks of the newest one like it.
    op.create_index(
        "jobs_alike_idx",
        "jobs",
        ["architecture", "batch_size", "optimizer", "source_oid", "id"],
        schema="tensile",
        postgresql_where=sa.text("vanilla_peak_nbytes IS NOT NULL OR needed_nbytes IS NOT NULL"),
    )


def _add(table: str, *columns: sa.Column[object]) -> None:
    for column in columns:
        op.add_column(table, column, schema="tensile")
