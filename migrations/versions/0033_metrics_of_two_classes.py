"""Searches may go by precision, recall and F1 of two classes, and by the mean F1 of any."""

from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_BEFORE = "metric IN ('loss', 'accuracy', 'balanced_accuracy', 'roc_auc', 'mse', 'rmse', 'mae', 'r2')"
_NOW = (
    "metric IN ('loss', 'accuracy', 'balanced_accuracy', 'macro_f1', 'precision', 'recall', 'f1', 'roc_auc',"
    " 'mse', 'rmse', 'mae', 'r2')"
)


def upgrade() -> None:
    _check(_NOW)


def downgrade() -> None:
    # A search by what is no metric there goes by the nearest; its trials' values stay.
    op.execute(
        "UPDATE tensile.search_requests SET metric = 'balanced_accuracy'"
        " WHERE metric IN ('macro_f1', 'precision', 'recall', 'f1')"
    )
    _check(_BEFORE)


def _check(condition: str) -> None:
    name = op.f("search_requests_metric_check")
    op.drop_constraint(name, "search_requests", schema="tensile")
    op.create_check_constraint(name, "search_requests", condition, schema="tensile")
