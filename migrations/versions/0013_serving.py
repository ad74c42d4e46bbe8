"""Rows predicted one at a time: their requests, and the jobs that serve models."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _check("jobs", "kind", "kind IN ('train', 'predict', 'evaluate', 'explain', 'search', 'serve')")
    _check(
        "jobs",
        "phase",
        "phase IN ('queued', 'reading', 'capturing', 'planning', 'training', 'validating',"
        " 'saving', 'predicting', 'searching', 'serving', 'paused', 'done')",
    )
    _check("plans", "reason", "reason IN ('cold_start', 'arrival', 'departure', 'drift', 'resume', 'use')")
    op.alter_column(
        "jobs", "model_id", schema="tensile", comment="The model to use, for predict, evaluate and serve."
    )
    op.create_index(
        "jobs_served_model_idx",
        "jobs",
        ["model_id"],
        unique=True,
        schema="tensile",
        postgresql_where=sa.text("kind = 'serve' AND state IN ('queued', 'waiting', 'running')"),
    )
    op.create_table(
        "serving_requests",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="The request."),
        sa.Column("model_id", sa.BigInteger(), nullable=False, comment="The model that is to predict."),
        sa.Column("requested_by", postgresql.OID(), nullable=False, comment="The role that asks."),
        sa.Column("client_pid", sa.Integer(), nullable=False, comment="The server process that waits."),
        sa.Column(
            "client_started_at",
            sa.DateTime(timezone=True),
            nullable=False,
            comment="When that process started.",
        ),
        sa.Column(
            "form",
            sa.Text(),
            nullable=False,
            comment="How the features are given: bytes, array (array_send of float8[]) or object (JSON).",
        ),
        sa.Column(
            "wants_probabilities",
            sa.Boolean(),
            nullable=False,
            comment="Whether those of all classes are asked for.",
        ),
        sa.Column("features", sa.LargeBinary(), nullable=False, comment="Of one row."),
        sa.Column(
            "asked",
            sa.Integer(),
            server_default=sa.text("1"),
            nullable=False,
            comment="How often the workers were told of it.",
        ),
        sa.Column(
            "answered",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="Whether what follows is the answer.",
        ),
        sa.Column("prediction", sa.Text(), nullable=True, comment="The class, or the number as text."),
        sa.Column(
            "probabilities",
            postgresql.JSONB(none_as_null=True),
            nullable=True,
            comment="Of each class; NULL for a number.",
        ),
        sa.Column("error_sqlstate", sa.Text(), nullable=True, comment="Why there is none, as an SQLSTATE."),
        sa.Column("error_message", sa.Text(), nullable=True, comment="Why there is none, as a sentence."),
        sa.Column("error_hint", sa.Text(), nullable=True, comment="What to change."),
        sa.CheckConstraint("form IN ('bytes', 'array', 'object')", name=op.f("serving_requests_form_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("serving_requests_pkey")),
        schema="tensile",
        comment="Rows that sessions wait to have predicted, and the answers, until they have been read.",
        # Nobody waits for what was asked before a crash.
        prefixes=["UNLOGGED"],
    )
    # Answers find room on the page of their request; neither index knows of them.  A row lives for some
    # milliseconds: what it leaves behind is cleaned up by the hundred, not by the share of a table that is
    # empty most of the time.  Images are compressed already.
    op.create_index("serving_requests_model_id_idx", "serving_requests", ["model_id"], schema="tensile")
    op.execute(
        "ALTER TABLE tensile.serving_requests SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0,"
        " autovacuum_vacuum_threshold = 2000, autovacuum_analyze_threshold = 1000000,"
        " toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 2000)"
    )
    op.execute("ALTER TABLE tensile.serving_requests ALTER COLUMN features SET STORAGE EXTERNAL")
    op.execute("ALTER TABLE tensile.serving_requests ENABLE ROW LEVEL SECURITY")


def _check(table: str, name: str, condition: str) -> None:
    constraint = op.f(f"{table}_{name}_check")
    op.drop_constraint(constraint, table, schema="tensile")
    op.create_check_constraint(constraint, table, condition, schema="tensile")
