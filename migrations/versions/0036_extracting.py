"""A phase of jobs: what a frozen backbone makes of the rows is made."""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

_BEFORE = (
    "'queued', 'reading', 'capturing', 'planning', 'training', 'validating', 'saving', 'predicting',"
    " 'searching', 'serving', 'paused', 'done'"
)


def _check(phases: str) -> None:
    op.drop_constraint(op.f("jobs_phase_check"), "jobs", schema="tensile")
    op.create_check_constraint(op.f("jobs_phase_check"), "jobs", f"phase IN ({phases})", schema="tensile")


def upgrade() -> None:
    _check(f"{_BEFORE}, 'extracting'")


def downgrade() -> None:
    op.execute("UPDATE tensile.jobs SET phase = 'training' WHERE phase = 'extracting'")
    _check(_BEFORE)
