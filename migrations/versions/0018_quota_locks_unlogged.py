"""Locks of quotas without a write-ahead log."""

from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Nobody holds a lock any more after a crash.  Logged ones would have whoever asks for a row wait for the
    # disk, whose request is unlogged.
    op.execute("ALTER TABLE tensile.quota_locks SET UNLOGGED")
