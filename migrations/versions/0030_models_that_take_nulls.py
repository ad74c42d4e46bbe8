"""Rows with NULLs may be predicted; comments of what came of a row say so."""

from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

#: (column of tensile.serving_requests, the comment before, and now)
_COMMENTS = (
    (
        "prediction",
        "The class, or the number as text; NULL where a feature was NULL.",
        "The class, or the number as text; NULL where a feature was and the model takes no NULLs.",
    ),
    (
        "probabilities",
        "Of each class; NULL where they were not asked for, or a feature was NULL.",
        "Of each class; NULL where they were not asked for, or as the prediction is.",
    ),
)


def upgrade() -> None:
    for column, before, now in _COMMENTS:
        op.alter_column("serving_requests", column, comment=now, existing_comment=before, schema="tensile")


def downgrade() -> None:
    for column, before, now in _COMMENTS:
        op.alter_column("serving_requests", column, comment=before, existing_comment=now, schema="tensile")
