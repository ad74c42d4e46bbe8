"""What networks of packages were built with: until now without the options that only a package can read.

From now on packages get these.  Models that there are, and jobs that go on from a checkpoint, keep the
network that they have, and so what they are built with must not name any.
"""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

#: Of a job or a model, whatever its architecture.
_OF_JOBS = """
    'betas', 'checkpoint_iterations', 'checkpoint_seconds', 'device', 'eps', 'image_size',
    'max_swapping_rate', 'memory_format', 'momentum', 'precision', 'raw_shape', 'task', 'weight_decay'
"""


def upgrade() -> None:
    op.execute(f"""
        UPDATE tensile.models m
        SET features = jsonb_set(m.features, '{{options}}', ({_kept("m.features -> 'options'")}))
        FROM tensile.architectures a
        WHERE a.name = m.architecture AND a.kind = 'plugin'
          AND jsonb_typeof(m.features -> 'options') = 'object'
    """)
    op.execute(f"""
        UPDATE tensile.jobs j SET options = ({_kept("j.options")})
        FROM tensile.architectures a
        WHERE a.name = j.architecture AND a.kind = 'plugin' AND j.finished_at IS NULL
          AND EXISTS (SELECT FROM tensile.checkpoints c WHERE c.job_id = j.id AND c.complete)
    """)


def _kept(options: str) -> str:
    """Return the query of those that are a job's own."""
    return f"""
        SELECT coalesce(jsonb_object_agg(o.key, o.value), '{{}}')
        FROM jsonb_each({options}) o WHERE o.key IN ({_OF_JOBS})
    """


def downgrade() -> None:
    """Leave it: what is named no more was not used before, either."""
