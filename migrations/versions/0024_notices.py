"""An index of what sessions that wait for a job are to be told, for they ask often."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


_COMMENT, _FORMER = (f"What happened: a state, a plan, a checkpoint, a {it}." for it in ("notice", "restart"))


def upgrade() -> None:
    op.alter_column("job_events", "kind", schema="tensile", comment=_COMMENT, existing_comment=_FORMER)
    op.create_index(
        "job_events_notices_idx",
        "job_events",
        ["job_id"],
        schema="tensile",
        postgresql_where=sa.text("kind = 'notice'"),
    )


def downgrade() -> None:
    op.alter_column("job_events", "kind", schema="tensile", comment=_FORMER, existing_comment=_COMMENT)
    op.drop_index("job_events_notices_idx", "job_events", schema="tensile")
