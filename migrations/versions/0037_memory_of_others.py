"""What other processes hold of a worker's device."""

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "devices",
        sa.Column(
            "others_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="What other processes hold of it at present, in bytes, if the driver tells.",
        ),
        schema="tensile",
    )


def downgrade() -> None:
    op.drop_column("devices", "others_nbytes", schema="tensile")
