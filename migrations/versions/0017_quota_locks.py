"""Locks of quotas that nobody else can hold."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quota_locks",
        sa.Column("role_oid", postgresql.OID(), autoincrement=False, nullable=False, comment="The role."),
        sa.Column("counted", sa.Text(), nullable=False, comment="What is counted: jobs or rows."),
        sa.CheckConstraint("counted IN ('jobs', 'rows')", name=op.f("quota_locks_counted_check")),
        sa.PrimaryKeyConstraint("role_oid", "counted", name=op.f("quota_locks_pkey")),
        schema="tensile",
        comment="Rows that whoever counts what a role has locks meanwhile; nobody else may read them.",
        # Nobody holds a lock any more after a crash.  Logged ones would have whoever asks for a row wait for
        # the disk, whose request is unlogged.
        prefixes=["UNLOGGED"],
    )
    op.execute("ALTER TABLE tensile.quota_locks ENABLE ROW LEVEL SECURITY")
