"""How models standardise the numbers that they predict."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "models",
        sa.Column(
            "target_scaling",
            postgresql.JSONB(),
            nullable=True,
            comment="Mean and scale by which a number to predict was standardised; NULL: it was not.",
        ),
        schema="tensile",
    )
