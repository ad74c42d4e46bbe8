"""Searches may go by the area under the ROC curve, and by the coefficient of determination."""

from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_BEFORE = "metric IN ('loss', 'accuracy', 'balanced_accuracy', 'mse', 'rmse', 'mae')"
_NOW = "metric IN ('loss', 'accuracy', 'balanced_accuracy', 'roc_auc', 'mse', 'rmse', 'mae', 'r2')"


def upgrade() -> None:
    _check(_NOW)


def downgrade() -> None:
    # A search by what is no metric there goes by the nearest; its trials' values stay.
    op.execute("UPDATE tensile.search_requests SET metric = 'accuracy' WHERE metric = 'roc_auc'")
    op.execute("UPDATE tensile.search_requests SET metric = 'mse' WHERE metric = 'r2'")
    _check(_BEFORE)


def _check(condition: str) -> None:
    name = op.f("search_requests_metric_check")
    op.drop_constraint(name, "search_requests", schema="tensile")
    op.create_check_constraint(name, "search_requests", condition, schema="tensile")
