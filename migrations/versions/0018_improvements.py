"""Plans that are better than those that others had waited for."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    name = op.f("plans_reason_check")
    op.drop_constraint(name, "plans", schema="tensile")
    op.create_check_constraint(
        name,
        "plans",
        "reason IN ('cold_start', 'arrival', 'departure', 'drift', 'resume', 'use', 'improvement')",
        schema="tensile",
    )
