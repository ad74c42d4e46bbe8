"""Searches for hyperparameters, and their trials."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column(
            "search_id",
            sa.BigInteger(),
            nullable=True,
            comment="The search that this training is a trial of; NULL: it is none.",
        ),
        schema="tensile",
    )
    op.create_foreign_key(
        op.f("jobs_search_id_fkey"),
        "jobs",
        "jobs",
        ["search_id"],
        ["id"],
        source_schema="tensile",
        referent_schema="tensile",
        ondelete="CASCADE",
    )
    op.create_index(
        "jobs_search_id_idx",
        "jobs",
        ["search_id"],
        schema="tensile",
        postgresql_where=sa.text("search_id IS NOT NULL"),
    )
    _check("kind", "kind IN ('train', 'predict', 'evaluate', 'explain', 'search')")
    _check(
        "phase",
        "phase IN ('queued', 'reading', 'capturing', 'planning', 'training', 'validating',"
        " 'saving', 'predicting', 'searching', 'paused', 'done')",
    )
    op.create_table(
        "search_requests",
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column(
            "space",
            postgresql.JSONB(),
            nullable=False,
            comment="Arguments and options to vary, and over what values.",
        ),
        sa.Column(
            "method", sa.Text(), nullable=False, comment="Who chooses the values: grid, random, tpe, ..."
        ),
        sa.Column("trials", sa.Integer(), nullable=False, comment="Trainings to begin, at most."),
        sa.Column(
            "max_parallel", sa.Integer(), nullable=False, comment="Trainings under way at a time, at most."
        ),
        sa.Column(
            "metric",
            sa.Text(),
            nullable=False,
            comment="The validation metric of the last epoch that decides.",
        ),
        sa.CheckConstraint(
            "method IN ('grid', 'random', 'tpe', 'halving', 'hyperband')",
            name=op.f("search_requests_method_check"),
        ),
        sa.CheckConstraint(
            "metric IN ('loss', 'accuracy', 'mse', 'rmse', 'mae')",
            name=op.f("search_requests_metric_check"),
        ),
        sa.CheckConstraint("trials BETWEEN 1 AND 10000", name=op.f("search_requests_trials_check")),
        sa.CheckConstraint(
            "max_parallel BETWEEN 1 AND 1000", name=op.f("search_requests_max_parallel_check")
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("search_requests_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("search_requests_pkey")),
        schema="tensile",
        comment="What each search asks for; all else that its trainings have in common is in its row of"
        " jobs.",
    )
    op.create_table(
        "search_trials",
        sa.Column("search_id", sa.BigInteger(), nullable=False, comment="The search."),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False, comment="The trial, from 0."),
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The training."),
        sa.Column(
            "params",
            postgresql.JSONB(),
            nullable=False,
            comment="The values that were chosen for it, by name.",
        ),
        sa.Column(
            "value",
            sa.Double(),
            nullable=True,
            comment="The metric after its last epoch, or when it was pruned.",
        ),
        sa.Column(
            "pruned_reason", sa.Text(), nullable=True, comment="Why it was stopped early; NULL: it was not."
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was begun.",
        ),
        sa.ForeignKeyConstraint(
            ["search_id"], ["tensile.jobs.id"], name=op.f("search_trials_search_id_fkey"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("search_trials_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("search_id", "number", name=op.f("search_trials_pkey")),
        sa.UniqueConstraint("job_id", name=op.f("search_trials_job_id_key")),
        schema="tensile",
        comment="The trials of searches: trainings with values of their own.",
    )
    for table in ("search_requests", "search_trials"):
        op.execute(f"ALTER TABLE tensile.{table} ENABLE ROW LEVEL SECURITY")


def _check(name: str, condition: str) -> None:
    constraint = op.f(f"jobs_{name}_check")
    op.drop_constraint(constraint, "jobs", schema="tensile")
    op.create_check_constraint(constraint, "jobs", condition, schema="tensile")
