"""Predictions of a table may have the probability of each class."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "predictions",
        sa.Column(
            "probabilities",
            sa.ARRAY(sa.Double),
            comment="Of each class, in the model's order; NULL where they were not asked for.",
        ),
        schema="tensile",
    )


def downgrade() -> None:
    op.drop_column("predictions", "probabilities", schema="tensile")
