"""When each op of a plan runs, as predicted.  Of older plans that is not known."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import ARRAY

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_COLUMNS = {
    "run_ops": (sa.Integer, "The op of each run in an iteration, in time's order; NULL in older plans."),
    "run_begin_ns": (sa.BigInteger, "When each run begins, as predicted, in ns from the iteration's start."),
    "run_end_ns": (sa.BigInteger, "When each run ends."),
    "run_recomputes": (sa.Boolean, "Whether a run is a recomputation."),
}


def upgrade() -> None:
    for name, (kind, comment) in _COLUMNS.items():
        op.add_column("plans", sa.Column(name, ARRAY(kind), comment=comment), schema="tensile")


def downgrade() -> None:
    op.execute("DROP VIEW IF EXISTS tensile.plan_runs")
    for name in reversed(_COLUMNS):
        op.drop_column("plans", name, schema="tensile")
