"""Indexes for many jobs: of all that are under way, and of graphs' plans; none that nobody looks into."""

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

_UNDER_WAY = "('queued', 'waiting', 'running', 'paused')"
_NOT_PAUSED = "('queued', 'waiting', 'running')"


def upgrade() -> None:
    _make_claim_idx(_UNDER_WAY)
    op.execute("CREATE INDEX plans_graph_digest_idx ON tensile.plans (graph_digest)")
    op.execute("CREATE INDEX plans_captured_digest_idx ON tensile.plans (captured_digest)")
    # It kept updates of a job's latencies from being heap-only ones.
    op.execute("DROP INDEX tensile.latency_logs_measured_at_idx")


def downgrade() -> None:
    op.execute("CREATE INDEX latency_logs_measured_at_idx ON tensile.latency_logs (measured_at)")
    op.execute("DROP INDEX tensile.plans_captured_digest_idx, tensile.plans_graph_digest_idx")
    _make_claim_idx(_NOT_PAUSED)


def _make_claim_idx(states: str) -> None:
    op.execute("DROP INDEX tensile.jobs_claim_idx")
    op.execute(f"CREATE INDEX jobs_claim_idx ON tensile.jobs (priority DESC, id) WHERE state IN {states}")
