"""Quotas of rows that wait for their predictions."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The functions are made anew with one argument more; these would stay beside them.
    for schema in ("public", "tensile"):
        op.execute(
            f"DROP FUNCTION IF EXISTS {schema}.tensile_set_quota(name, integer, bigint, double precision)"
        )
    op.add_column(
        "quotas",
        sa.Column(
            "max_serving_requests",
            sa.Integer(),
            nullable=True,
            comment="Rows that its sessions may wait to have predicted at a time; NULL: any number.",
        ),
        schema="tensile",
    )
    op.create_check_constraint(
        op.f("quotas_max_serving_requests_check"), "quotas", "max_serving_requests >= 0", schema="tensile"
    )
    # By which a role's are counted, where it has a quota.
    op.create_index(
        "serving_requests_requested_by_idx", "serving_requests", ["requested_by"], schema="tensile"
    )
