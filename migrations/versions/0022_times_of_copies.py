"""When each copy of a plan begins and ends, as predicted.  Of older plans that is not known."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_COLUMNS = {
    "begin_ns": "When a copy begins, as predicted, in ns from the iteration's start; NULL in older plans.",
    "end_ns": "When it ends, maybe later than the iteration; when it begins, where nothing is copied.",
}


def upgrade() -> None:
    for name, comment in _COLUMNS.items():
        column = sa.Column(name, sa.BigInteger(), nullable=True, comment=comment)
        op.add_column("plan_events", column, schema="tensile")


def downgrade() -> None:
    for name in reversed(_COLUMNS):
        op.drop_column("plan_events", name, schema="tensile")
