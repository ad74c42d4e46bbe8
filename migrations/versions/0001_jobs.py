"""Jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="The job."),
        sa.Column("kind", sa.Text(), server_default="train", nullable=False, comment="What is asked for."),
        sa.Column(
            "state",
            sa.Text(),
            server_default="queued",
            nullable=False,
            comment="Where in its life the job is.",
        ),
        sa.Column(
            "submitted_by",
            postgresql.OID(),
            nullable=False,
            comment="The role that asked; its table is read as this role.",
        ),
        sa.Column("owner", sa.Text(), nullable=False, comment="The name of that role when it asked."),
        sa.Column("client_pid", sa.Integer(), nullable=True, comment="The server process that asked."),
        sa.Column(
            "database",
            sa.Text(),
            server_default=sa.text("current_database()"),
            nullable=False,
            comment="Its database.",
        ),
        sa.Column(
            "architecture", sa.Text(), nullable=True, comment="The network, by the name that was given."
        ),
        sa.Column("source_oid", postgresql.OID(), nullable=False, comment="The table or view."),
        sa.Column(
            "source_name", sa.Text(), nullable=False, comment="Its name when asked, qualified and quoted."
        ),
        sa.Column("target", sa.Text(), nullable=True, comment="The column to learn."),
        sa.Column(
            "features", postgresql.ARRAY(sa.Text()), nullable=True, comment="The columns to learn from."
        ),
        sa.Column("model", sa.Text(), nullable=True, comment="The name of the model to make or to use."),
        sa.Column(
            "model_version",
            sa.Integer(),
            nullable=True,
            comment="Its version; that of a new model is given when it is saved.",
        ),
        sa.Column(
            "model_id", sa.BigInteger(), nullable=True, comment="The model to use, for predict and evaluate."
        ),
        sa.Column("epochs", sa.Integer(), nullable=True, comment="Passes over the training rows."),
        sa.Column("batch_size", sa.Integer(), nullable=True, comment="Rows an iteration."),
        sa.Column("optimizer", sa.Text(), nullable=True, comment="sgd, momentum, adam or adamw."),
        sa.Column("learning_rate", sa.Double(), nullable=True, comment="The optimizer's step size."),
        sa.Column(
            "validation",
            sa.Double(),
            nullable=True,
            comment="The share of rows that is held out, from 0 to below 1.",
        ),
        sa.Column(
            "seed", sa.BigInteger(), server_default="0", nullable=False, comment="Decides all that is random."
        ),
        sa.Column(
            "priority",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="Higher ones are claimed first.",
        ),
        sa.Column(
            "memory_limit_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The most device memory for this job, in bytes; NULL: no limit of its own.",
        ),
        sa.Column("policy", sa.Text(), server_default="tensile", nullable=False, comment="The planner."),
        sa.Column(
            "options",
            postgresql.JSONB(),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
            comment="Further options.",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was asked for.",
        ),
        sa.Column(
            "claimed_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When the newest attempt was claimed.",
        ),
        sa.Column(
            "started_at", sa.DateTime(timezone=True), nullable=True, comment="When the first attempt started."
        ),
        sa.Column(
            "finished_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="When it reached its last state.",
        ),
        sa.Column(
            "worker_id",
            sa.BigInteger(),
            nullable=True,
            comment="The worker that holds the job; fences every write.",
        ),
        sa.Column(
            "attempt",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="Claims so far; fences writes, too.",
        ),
        sa.Column(
            "heartbeat_at",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="The worker's last sign of life for this job; its lease runs from here.",
        ),
        sa.Column(
            "cancel_requested",
            sa.Boolean(),
            server_default=sa.text("false"),
            nullable=False,
            comment="Its owner wants it stopped.",
        ),
        sa.Column(
            "phase",
            sa.Text(),
            server_default="queued",
            nullable=False,
            comment="What is being done at present.",
        ),
        sa.Column("wait_reason", sa.Text(), nullable=True, comment="Why it waits."),
        sa.Column("error_sqlstate", sa.Text(), nullable=True, comment="Why it failed, as an SQLSTATE."),
        sa.Column("error_message", sa.Text(), nullable=True, comment="Why it failed, as a sentence."),
        sa.Column("error_hint", sa.Text(), nullable=True, comment="What to change so that it does not fail."),
        sa.Column("iteration", sa.BigInteger(), nullable=True, comment="Iterations done."),
        sa.Column("iterations_total", sa.BigInteger(), nullable=True, comment="Iterations to do."),
        sa.Column("epoch", sa.Integer(), nullable=True, comment="The epoch at present, from 1."),
        sa.Column("loss", sa.Double(), nullable=True, comment="The newest training loss."),
        sa.Column(
            "samples_per_second",
            sa.Double(),
            nullable=True,
            comment="Rows trained on or predicted a second, lately.",
        ),
        sa.Column("rows_total", sa.BigInteger(), nullable=True, comment="Rows read from the source."),
        sa.Column(
            "vanilla_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The peak of eager PyTorch, in bytes.",
        ),
        sa.Column(
            "planned_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The peak that the newest plan predicts, in bytes.",
        ),
        sa.Column(
            "guaranteed_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The most that the newest plan can hold, whatever the latencies.",
        ),
        sa.Column(
            "measured_peak_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The highest peak that the device counted for this job, in bytes.",
        ),
        sa.Column(
            "budget_nbytes",
            sa.BigInteger(),
            nullable=True,
            comment="The device memory granted to this job, in bytes.",
        ),
        sa.Column(
            "result",
            postgresql.JSONB(),
            nullable=True,
            comment="What came of it: metrics and seconds, or an explain job's rows.",
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row last changed.",
        ),
        sa.CheckConstraint("error_sqlstate ~ '^[0-9A-Z]{5}$'", name=op.f("jobs_error_sqlstate_check")),
        sa.CheckConstraint(
            "kind IN ('train', 'predict', 'evaluate', 'explain')", name=op.f("jobs_kind_check")
        ),
        sa.CheckConstraint(
            "learning_rate > 0 AND learning_rate < 'infinity'", name=op.f("jobs_learning_rate_check")
        ),
        sa.CheckConstraint(
            "phase IN ('queued', 'reading', 'capturing', 'planning', 'training', 'validating',"
            " 'saving', 'predicting', 'done')",
            name=op.f("jobs_phase_check"),
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'waiting', 'running', 'paused', 'succeeded', 'failed', 'cancelled')",
            name=op.f("jobs_state_check"),
        ),
        sa.CheckConstraint("batch_size >= 1", name=op.f("jobs_batch_size_check")),
        sa.CheckConstraint("epochs >= 1", name=op.f("jobs_epochs_check")),
        sa.CheckConstraint("memory_limit_nbytes > 0", name=op.f("jobs_memory_limit_check")),
        sa.CheckConstraint("validation >= 0 AND validation < 1", name=op.f("jobs_validation_check")),
        sa.PrimaryKeyConstraint("id", name=op.f("jobs_pkey")),
        schema="tensile",
        comment="Every job: the request, its way through a worker, and how far it has come.",
    )
    op.create_index(
        "jobs_claim_idx",
        "jobs",
        [sa.literal_column("priority DESC"), "id"],
        unique=False,
        schema="tensile",
        postgresql_where=sa.text("state IN ('queued', 'waiting', 'running')"),
    )
    op.create_index("jobs_submitted_by_idx", "jobs", ["submitted_by"], unique=False, schema="tensile")
    op.create_table(
        "job_events",
        sa.Column(
            "id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="Orders the events."
        ),
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column(
            "at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it happened.",
        ),
        sa.Column(
            "kind",
            sa.Text(),
            nullable=False,
            comment="What happened: a state, a plan, a checkpoint, a restart.",
        ),
        sa.Column(
            "detail",
            postgresql.JSONB(),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
            comment="Its particulars.",
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("job_events_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("job_events_pkey")),
        schema="tensile",
        comment="What happened to each job, in order.",
    )
    op.create_index("job_events_job_id_idx", "job_events", ["job_id", "id"], unique=False, schema="tensile")
    op.create_table(
        "predictions",
        sa.Column("job_id", sa.BigInteger(), nullable=False, comment="The job."),
        sa.Column(
            "ordinal",
            sa.BigInteger(),
            autoincrement=False,
            nullable=False,
            comment="The row's place, from 0.",
        ),
        sa.Column(
            "row_key",
            sa.Text(),
            nullable=True,
            comment="Names the source's row: its primary key, else its place.",
        ),
        sa.Column("prediction", sa.Text(), nullable=True, comment="The class, or the number as text."),
        sa.Column("probability", sa.Double(), nullable=True, comment="Of that class; NULL for a number."),
        sa.ForeignKeyConstraint(
            ["job_id"], ["tensile.jobs.id"], name=op.f("predictions_job_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "ordinal", name=op.f("predictions_pkey")),
        schema="tensile",
        comment="What predict jobs made, until tensile_predict has returned it.",
    )
    for table in ("jobs", "job_events", "predictions"):
        op.execute(f"ALTER TABLE tensile.{table} ENABLE ROW LEVEL SECURITY")
