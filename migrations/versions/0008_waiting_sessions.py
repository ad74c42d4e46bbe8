"""Which session waits for a job."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column(
            "client_started_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When that process started, if it waits for the job, which ends with it.",
        ),
        schema="tensile",
    )
