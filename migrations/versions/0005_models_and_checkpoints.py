"""Models and checkpoints."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "checkpoints",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="The checkpoint."),
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column("iteration", sa.BigInteger(), nullable=False, comment="Iterations done."),
        sa.Column("attempt", sa.Integer(), nullable=False, comment="The attempt that made it."),
        sa.Column(
            "random_state", sa.LargeBinary(), nullable=True, comment="The state of the job's generator."
        ),
        sa.Column(
            "detail",
            postgresql.JSONB(),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
            comment="What else is needed.",
        ),
        sa.Column(
            "complete",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="Whether all its tensors are here; no other one is ever resumed from.",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was begun.",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("checkpoints_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("checkpoints_pkey")),
        schema="tensile",
        comment="From where a job goes on when its worker is lost: the newest complete one is kept.",
    )
    op.create_index(
        "checkpoints_job_id_idx", "checkpoints", ["job_id", "iteration"], unique=False, schema="tensile"
    )
    op.create_table(
        "models",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="The model."),
        sa.Column("name", sa.Text(), nullable=False, comment="Its name, its owner's own."),
        sa.Column(
            "version", sa.Integer(), nullable=False, comment="From 1; training it again makes the next."
        ),
        sa.Column("owned_by", postgresql.OID(), nullable=False, comment="The role whose it is."),
        sa.Column("owner", sa.Text(), nullable=False, comment="The name of that role then."),
        sa.Column("job_id", sa.BigInteger(), nullable=True, comment="The job that made it."),
        sa.Column("architecture", sa.Text(), nullable=False, comment="The network."),
        sa.Column("task", sa.Text(), nullable=False, comment="What it predicts."),
        sa.Column(
            "classes",
            postgresql.JSONB(),
            nullable=True,
            comment="The labels, in the order of the outputs; NULL for a number.",
        ),
        sa.Column(
            "features",
            postgresql.JSONB(),
            nullable=False,
            comment="Kind, columns, shape and scaling of its input.",
        ),
        sa.Column("target", sa.Text(), nullable=True, comment="The column it learned."),
        sa.Column(
            "parameter_nbytes", sa.BigInteger(), nullable=False, comment="The size of its weights, in bytes."
        ),
        sa.Column(
            "metrics",
            postgresql.JSONB(),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
            comment="How well it does.",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was saved.",
        ),
        sa.CheckConstraint("task IN ('classification', 'regression')", name=op.f("models_task_check")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("models_job_id_fkey"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("models_pkey")),
        sa.UniqueConstraint("owned_by", "name", "version", name=op.f("models_owned_by_name_version_key")),
        schema="tensile",
        comment="Trained models.",
    )
    op.create_index("models_job_id_idx", "models", ["job_id"], unique=False, schema="tensile")
    op.create_table(
        "checkpoint_tensors",
        sa.Column("checkpoint_id", sa.BigInteger(), nullable=False, comment="The checkpoint."),
        sa.Column(
            "name", sa.Text(), nullable=False, comment="parameter/..., buffer/... or optimizer_state/..."
        ),
        sa.Column("part", sa.Integer(), nullable=False, comment="From 0."),
        sa.Column("dtype", sa.Text(), nullable=False, comment="The elements."),
        sa.Column(
            "shape",
            postgresql.ARRAY(sa.BigInteger()),
            nullable=False,
            comment="Of the whole tensor, in elements.",
        ),
        sa.Column(
            "data",
            sa.LargeBinary(),
            nullable=False,
            comment="This part's bytes, little-endian, at most 16 MiB.",
        ),
        sa.ForeignKeyConstraint(
            ["checkpoint_id"],
            ["tensile.checkpoints.id"],
            name=op.f("checkpoint_tensors_checkpoint_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("checkpoint_id", "name", "part", name=op.f("checkpoint_tensors_pkey")),
        schema="tensile",
        comment="The tensors of checkpoints, a row for each part of one.",
    )
    op.create_table(
        "model_weights",
        sa.Column("model_id", sa.BigInteger(), nullable=False, comment="The model."),
        sa.Column(
            "name",
            sa.Text(),
            nullable=False,
            comment="parameter/... or buffer/..., as the architecture names it.",
        ),
        sa.Column("part", sa.Integer(), nullable=False, comment="From 0."),
        sa.Column("dtype", sa.Text(), nullable=False, comment="The elements."),
        sa.Column(
            "shape",
            postgresql.ARRAY(sa.BigInteger()),
            nullable=False,
            comment="Of the whole tensor, in elements.",
        ),
        sa.Column(
            "data",
            sa.LargeBinary(),
            nullable=False,
            comment="This part's bytes, little-endian, at most 16 MiB.",
        ),
        sa.ForeignKeyConstraint(
            ["model_id"], ["tensile.models.id"], name=op.f("model_weights_model_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("model_id", "name", "part", name=op.f("model_weights_pkey")),
        schema="tensile",
        comment="The weights of models, a row for each part of a tensor.",
    )
    # Weights do not compress, and parts of a value are read without reading all of it.
    op.execute("ALTER TABLE tensile.model_weights ALTER COLUMN data SET STORAGE EXTERNAL")
    op.execute("ALTER TABLE tensile.checkpoint_tensors ALTER COLUMN data SET STORAGE EXTERNAL")
    for table in ("models", "model_weights", "checkpoints", "checkpoint_tensors"):
        op.execute(f"ALTER TABLE tensile.{table} ENABLE ROW LEVEL SECURITY")
