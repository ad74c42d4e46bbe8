"""Searches may go by balanced accuracy; comments say what a trial with a patience counts by, too."""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

_BEFORE = "metric IN ('loss', 'accuracy', 'mse', 'rmse', 'mae')"
_NOW = "metric IN ('loss', 'accuracy', 'balanced_accuracy', 'mse', 'rmse', 'mae')"

#: (table, column, the comment before, and now)
_COMMENTS = (
    (
        "search_requests",
        "metric",
        "The validation metric of the last epoch that decides.",
        "The validation metric by which trials are compared.",
    ),
    (
        "search_trials",
        "value",
        "The metric after its last epoch, or when it was pruned.",
        "The metric of its model; of a pruned trial, of its last epoch.",
    ),
)


def upgrade() -> None:
    _check(_NOW)
    for table, column, before, now in _COMMENTS:
        op.alter_column(table, column, comment=now, existing_comment=before, schema="tensile")


def downgrade() -> None:
    # A search by what is no metric there goes by accuracy, the nearest; its trials' values stay.
    op.execute("UPDATE tensile.search_requests SET metric = 'accuracy' WHERE metric = 'balanced_accuracy'")
    _check(_BEFORE)
    for table, column, before, now in _COMMENTS:
        op.alter_column(table, column, comment=before, existing_comment=now, schema="tensile")


def _check(condition: str) -> None:
    name = op.f("search_requests_metric_check")
    op.drop_constraint(name, "search_requests", schema="tensile")
    op.create_check_constraint(name, "search_requests", condition, schema="tensile")
