"""An index of what sessions that wait for a job are to be told, for they ask often."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "job_events_notices_idx",
        "job_events",
        ["job_id"],
        schema="tensile",
        postgresql_where=sa.text("kind = 'notice'"),
    )


def downgrade() -> None:
    op.drop_index("job_events_notices_idx", "job_events", schema="tensile")
