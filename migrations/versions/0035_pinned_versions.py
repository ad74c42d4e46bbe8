"""Versions of models that stay the default when newer ones are trained."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

_INDEX = "models_pinned_key"


def upgrade() -> None:
    op.add_column(
        "models",
        sa.Column(
            "pinned",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="Whether it stays the default of its name when newer versions are trained.",
        ),
        schema="tensile",
    )
    op.create_index(
        _INDEX,
        "models",
        ["owned_by", "name"],
        unique=True,
        schema="tensile",
        postgresql_where=sa.text("pinned"),
    )


def downgrade() -> None:
    op.drop_index(_INDEX, "models", schema="tensile")
    op.drop_column("models", "pinned", schema="tensile")
