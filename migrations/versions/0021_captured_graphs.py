"""Plans name the captured graph, whose ops' latencies are measured; comments tell what columns are of.

Of older plans that is not known, for they may be of packed or split graphs: their jobs' latencies are
measured anew.
"""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


#: (table, column, the comment before, and now)
_COMMENTS = (
    ("latency_logs", "op_id", "The op of the job's graph.", "The op of the captured graph."),
    (
        "plans",
        "lower_bound_peak_nbytes",
        "No plan can do with less, in bytes.",
        "No plan of whole ops, nothing packed, can do with less, in bytes.",
    ),
    (
        "memory_peaks",
        "device_peak_nbytes",
        "The most that all jobs together held, in bytes.",
        "The most that all jobs together held since the worker began, in bytes.",
    ),
)


def upgrade() -> None:
    op.add_column(
        "plans",
        sa.Column(
            "captured_digest",
            sa.Text(),
            sa.ForeignKey("tensile.graphs.digest", name=op.f("plans_captured_digest_fkey")),
            nullable=True,
            comment="The captured graph, from which the plan's was packed or split; the same where none was.",
        ),
        schema="tensile",
    )
    for table, column, before, now in _COMMENTS:
        op.alter_column(table, column, comment=now, existing_comment=before, schema="tensile")


def downgrade() -> None:
    for table, column, before, now in _COMMENTS:
        op.alter_column(table, column, comment=before, existing_comment=now, schema="tensile")
    # They tell by it whose graphs are whose; until the functions of that version are installed nobody's are.
    for table in ("graphs", "graph_tensors", "graph_ops"):
        op.execute(f"DROP POLICY IF EXISTS user_select ON tensile.{table}")
    op.drop_column("plans", "captured_digest", schema="tensile")
