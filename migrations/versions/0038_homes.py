"""Where a catalog was installed: a copy in another database, or another cluster, can tell that it is one."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "homes",
        sa.Column(
            "system_identifier",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="The cluster, as pg_control_system() tells it.",
        ),
        sa.Column(
            "jobs_oid",
            postgresql.OID(),
            autoincrement=False,
            nullable=False,
            comment="The number of tensile.jobs there.",
        ),
        sa.Column(
            "since",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was installed there, or settled after a restore.",
        ),
        sa.PrimaryKeyConstraint("system_identifier", "jobs_oid", name=op.f("homes_pkey")),
        schema="tensile",
        comment="The databases in which the numbers of roles and tables in this catalog hold; but for the one"
        " that it is in, a restore has brought them along.",
    )
    op.execute("ALTER TABLE tensile.homes ENABLE ROW LEVEL SECURITY")


def downgrade() -> None:
    # An installation makes it anew.
    op.execute("DROP FUNCTION IF EXISTS tensile.refresh_names(), tensile.is_home(), tensile.this_home()")
    op.drop_table("homes", schema="tensile")
