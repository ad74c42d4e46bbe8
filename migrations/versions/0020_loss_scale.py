"""A comment that tells of the loss scale."""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.alter_column(
        "checkpoint_tensors",
        "name",
        comment="parameter/..., buffer/..., optimizer_state/... or loss_scale/...",
        existing_comment="parameter/..., buffer/... or optimizer_state/...",
        schema="tensile",
    )


def downgrade() -> None:
    op.alter_column(
        "checkpoint_tensors",
        "name",
        comment="parameter/..., buffer/... or optimizer_state/...",
        existing_comment="parameter/..., buffer/..., optimizer_state/... or loss_scale/...",
        schema="tensile",
    )
