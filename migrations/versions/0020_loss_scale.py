"""Comments that tell of the loss scale."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


#: (table, column, the comment before, and now)
_COMMENTS = (
    (
        "checkpoint_tensors",
        "name",
        "parameter/..., buffer/... or optimizer_state/...",
        "parameter/..., buffer/..., optimizer_state/... or loss_scale/...",
    ),
    (
        "training_metrics",
        "metric",
        "loss, accuracy, mse, mae, ...",
        "loss, accuracy, mse, mae, loss_scale, ...",
    ),
)


def upgrade() -> None:
    for table, column, before, now in _COMMENTS:
        op.alter_column(table, column, comment=now, existing_comment=before, schema="tensile")


def downgrade() -> None:
    for table, column, before, now in _COMMENTS:
        op.alter_column(table, column, comment=before, existing_comment=now, schema="tensile")
