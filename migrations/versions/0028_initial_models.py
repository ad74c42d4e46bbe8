"""A training may start from the weights of a model."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column(
            "initial_model_id",
            sa.BigInteger(),
            nullable=True,
            comment="The model whose weights a training starts from.",
        ),
        schema="tensile",
    )


def downgrade() -> None:
    # An installation makes both anew.
    op.execute("DROP VIEW IF EXISTS tensile.queue")
    op.execute("DROP POLICY IF EXISTS user_insert ON tensile.jobs")
    op.drop_column("jobs", "initial_model_id", schema="tensile")
