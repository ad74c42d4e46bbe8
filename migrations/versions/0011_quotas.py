"""Quotas of roles, and the device time that counts towards them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "quotas",
        sa.Column(
            "role_oid",
            postgresql.OID(),
            autoincrement=False,
            nullable=False,
            comment="The role; 0: every role without a row of its own.",
        ),
        sa.Column(
            "role",
            sa.Text(),
            nullable=True,
            comment="Its name when the quota was set; NULL for that of all others.",
        ),
        sa.Column(
            "max_concurrent_jobs",
            sa.Integer(),
            nullable=True,
            comment="Jobs that it may have at a time that have not ended; NULL: any number.",
        ),
        sa.Column(
            "max_device_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="Device memory that each of its jobs may have, in bytes; NULL: no limit.",
        ),
        sa.Column(
            "max_device_seconds",
            sa.Double(),
            nullable=True,
            comment="Device time that all its jobs together may use, ever, in seconds; NULL: no limit.",
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was set.",
        ),
        sa.CheckConstraint("max_concurrent_jobs >= 0", name=op.f("quotas_max_concurrent_jobs_check")),
        sa.CheckConstraint("max_device_nbytes > 0", name=op.f("quotas_max_device_nbytes_check")),
        sa.CheckConstraint("max_device_seconds >= 0", name=op.f("quotas_max_device_seconds_check")),
        sa.PrimaryKeyConstraint("role_oid", name=op.f("quotas_pkey")),
        schema="tensile",
        comment="What roles may have of the devices: a role's own row holds, else that of all others.",
    )
    op.execute("ALTER TABLE tensile.quotas ENABLE ROW LEVEL SECURITY")
    op.add_column(
        "jobs",
        sa.Column(
            "pause_reason",
            sa.Text(),
            nullable=True,
            comment="Why it is to rest, where its owner did not ask for it.",
        ),
        schema="tensile",
    )
    op.add_column(
        "jobs",
        sa.Column(
            "device_seconds",
            sa.Double(),
            server_default=sa.text("0"),
            nullable=False,
            comment="How long its iterations took on devices, by all attempts, in seconds.",
        ),
        schema="tensile",
    )
