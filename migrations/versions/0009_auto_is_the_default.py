"""Jobs without a policy are planned by `auto`."""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column("jobs", "policy", server_default="auto", schema="tensile")
