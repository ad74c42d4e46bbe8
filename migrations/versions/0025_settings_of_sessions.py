"""A source is read with the settings of the session that asked, as far as they bear on values."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column(
            "settings",
            JSONB(),
            nullable=False,
            server_default=sa.text("'{}'::jsonb"),
            comment="Of the session that asked: how it computes and writes values; the table is read so.",
        ),
        schema="tensile",
    )
    op.create_check_constraint("settings", "jobs", "jsonb_typeof(settings) = 'object'", schema="tensile")


def downgrade() -> None:
    # It has all of a job's columns; an installation makes it anew.
    op.execute("DROP VIEW IF EXISTS tensile.queue")
    op.drop_column("jobs", "settings", schema="tensile")
