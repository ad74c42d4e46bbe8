"""Jobs can be paused."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column(
            "pause_requested",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="Its owner wants it to rest, until this is taken back.",
        ),
        schema="tensile",
    )
    op.create_check_constraint(
        op.f("jobs_pause_requested_check"), "jobs", "kind = 'train' OR NOT pause_requested", schema="tensile"
    )
    op.drop_constraint(op.f("jobs_phase_check"), "jobs", schema="tensile")
    op.create_check_constraint(
        op.f("jobs_phase_check"),
        "jobs",
        "phase IN ('queued', 'reading', 'capturing', 'planning', 'training', 'validating',"
        " 'saving', 'predicting', 'paused', 'done')",
        schema="tensile",
    )
    # sql/functions/jobs_triggers.sql has what does more than these.
    op.execute("DROP TRIGGER IF EXISTS cancel_queued ON tensile.jobs")
    op.execute("DROP TRIGGER IF EXISTS notify_cancelled ON tensile.jobs")
    op.execute("DROP FUNCTION IF EXISTS tensile.cancel_queued()")
