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
            comment="When it was installed there, or its owners were found after a restore.",
        ),
        sa.PrimaryKeyConstraint("system_identifier", "jobs_oid", name=op.f("homes_pkey")),
        schema="tensile",
        comment="The databases whose numbers of roles and tables the catalog has: its own alone, or, after a"
        " restore, also that which was dumped.",
    )
    op.execute("ALTER TABLE tensile.homes ENABLE ROW LEVEL SECURITY")
    op.execute(
        "INSERT INTO tensile.homes (system_identifier, jobs_oid)"
        " SELECT system_identifier, 'tensile.jobs'::regclass FROM pg_catalog.pg_control_system()"
    )


def downgrade() -> None:
    # An install makes functions and policies anew, those of its version.
    op.execute("DROP FUNCTION IF EXISTS public.tensile_after_restore(boolean)")
    op.execute("DROP FUNCTION IF EXISTS tensile.tensile_after_restore(boolean), tensile.find_owners()")
    op.execute("DROP FUNCTION IF EXISTS tensile.refresh_names(), tensile.is_at_home() CASCADE")
    op.execute("DROP FUNCTION IF EXISTS tensile.current_home()")
    op.drop_table("homes", schema="tensile")
