"""Jobs: what was asked for, how far it has come, and what happened on the way."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Identity,
    Index,
    Integer,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, OID

from tensile_db.catalog.tables.base import SCHEMA, count, instant, job_id, metadata, one_of

KINDS = ("train", "predict", "evaluate", "explain", "search", "serve")

#: queued -> waiting | running -> succeeded | failed | cancelled; from each of the first three to paused, and
#: from there to queued or cancelled.  No worker holds what is queued or paused.
STATES = ("queued", "waiting", "running", "paused", "succeeded", "failed", "cancelled")

PHASES = (
    "queued",
    "reading",
    "capturing",
    "planning",
    "extracting",
    "training",
    "validating",
    "saving",
    "predicting",
    "searching",
    "serving",
    "paused",
    "done",
)

#: A job that a worker may claim, or must go on with when its worker is gone.
_LIVE = text("state IN ('queued', 'waiting', 'running', 'paused')")

jobs = Table(
    "jobs",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="The job."),
    Column("kind", Text, nullable=False, server_default="train", comment="What is asked for."),
    Column("state", Text, nullable=False, server_default="queued", comment="Where in its life the job is."),
    # The request.
    Column(
        "submitted_by",
        OID,
        nullable=False,
        comment="The role that asked, or whose model is served; its table is read as this role.",
    ),
    Column("owner", Text, nullable=False, comment="The name of that role when it asked."),
    Column(
        "client_pid", Integer, comment="The server process that asked; NULL of a job that serves a model."
    ),
    instant("client_started_at", "When that process started, if it waits for the job, which ends with it."),
    Column(
        "database", Text, nullable=False, server_default=text("current_database()"), comment="Its database."
    ),
    Column("architecture", Text, comment="The network, by the name that was given."),
    Column("source_oid", OID, nullable=False, comment="The table or view; 0 of a job that serves a model."),
    Column(
        "source_name",
        Text,
        nullable=False,
        comment="Its name when asked, qualified and quoted; empty of a job that serves a model.",
    ),
    Column("target", Text, comment="The column to learn."),
    Column("features", ARRAY(Text), comment="The columns to learn from."),
    Column("model", Text, comment="The name of the model to make or to use."),
    Column("model_version", Integer, comment="Its version; that of a new model is given when it is saved."),
    Column("model_id", BigInteger, comment="The model to use, for predict, evaluate and serve."),
    Column(
        "search_id",
        ForeignKey(f"{SCHEMA}.jobs.id", ondelete="CASCADE"),
        comment="The search that this training is a trial of; NULL: it is none.",
    ),
    Column("epochs", Integer, comment="Passes over the training rows."),
    Column("batch_size", Integer, comment="Rows an iteration."),
    Column("optimizer", Text, comment="sgd, momentum, adam or adamw."),
    Column("learning_rate", Double, comment="The optimizer's step size."),
    Column("validation", Double, comment="The share of rows that is held out, from 0 to below 1."),
    Column("seed", BigInteger, nullable=False, server_default="0", comment="Decides all that is random."),
    Column("priority", Integer, nullable=False, server_default="0", comment="Higher ones are claimed first."),
    count("memory_limit_nbytes", "The most device memory for this job, in bytes; NULL: no limit of its own."),
    Column("policy", Text, nullable=False, server_default="auto", comment="The planner."),
    Column("options", JSONB, nullable=False, server_default=text("'{}'::jsonb"), comment="Further options."),
    Column(
        "settings",
        JSONB,
        nullable=False,
        server_default=text("'{}'::jsonb"),
        comment="Of the session that asked: how it computes and writes values; the table is read so.",
    ),
    # Its way through a worker.
    instant("created_at", "When it was asked for.", now=True),
    instant("claimed_at", "When the newest attempt was claimed."),
    instant("started_at", "When the first attempt started."),
    instant("finished_at", "When it reached its last state."),
    Column("worker_id", BigInteger, comment="The worker that holds the job; fences every write."),
    Column(
        "attempt", Integer, nullable=False, server_default="0", comment="Claims so far; fences writes, too."
    ),
    instant("heartbeat_at", "The worker's last sign of life for this job; its lease runs from here."),
    Column(
        "cancel_requested",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Its owner wants it stopped.",
    ),
    Column(
        "pause_requested",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Its owner wants it to rest, until this is taken back.",
    ),
    Column("pause_reason", Text, comment="Why it is to rest, where its owner did not ask for it."),
    Column("phase", Text, nullable=False, server_default="queued", comment="What is being done at present."),
    Column("wait_reason", Text, comment="Why it waits."),
    Column("error_sqlstate", Text, comment="Why it failed, as an SQLSTATE."),
    Column("error_message", Text, comment="Why it failed, as a sentence."),
    Column("error_hint", Text, comment="What to change so that it does not fail."),
    # How far it has come.
    count("iteration", "Iterations done."),
    count("iterations_total", "Iterations to do."),
    Column("epoch", Integer, comment="The epoch at present, from 1."),
    Column("loss", Double, comment="The newest training loss."),
    Column(
        "samples_per_second",
        Double,
        comment="Rows trained on or predicted a second, lately; of a job that serves, since it began to.",
    ),
    Column(
        "device_seconds",
        Double,
        nullable=False,
        server_default=text("0"),
        comment="How long its iterations took on devices, by all attempts, in seconds.",
    ),
    count("rows_total", "Rows read from the source; of a job that serves, rows predicted."),
    count("vanilla_peak_nbytes", "The peak of eager PyTorch, in bytes."),
    count("planned_peak_nbytes", "The peak that the newest plan predicts, in bytes."),
    count("guaranteed_peak_nbytes", "The most that the newest plan can hold, whatever the latencies."),
    count("measured_peak_nbytes", "The highest peak that the device counted for this job, in bytes."),
    count("budget_nbytes", "The device memory granted to this job, in bytes."),
    Column(
        "result",
        JSONB(none_as_null=True),
        comment="What came of it: metrics and seconds, or an explain job's rows; how far it is, where it"
        " searches or serves.  Of a job that serves: rows, batches, seconds, for how many batches (moves) and"
        " by how many bytes (moved_nbytes) the model was brought to the device.",
    ),
    instant("updated_at", "When this row last changed.", now=True),
    # Where it can go.
    count(
        "needed_nbytes",
        "The least device memory that would do, in bytes, once a device has been too small.",
    ),
    Column("rows_cache", Text, comment="Where the rows that it has read are kept: machine and folder."),
    Column(
        "meant_for",
        BigInteger,
        comment="The worker for which another has given it back; others leave it to that one a while.",
    ),
    Column("initial_model_id", BigInteger, comment="The model whose weights a training starts from."),
    Column("pretrained_id", BigInteger, comment="The pretrained weights that a training starts from."),
    one_of("kind", *KINDS),
    one_of("state", *STATES),
    one_of("phase", *PHASES),
    # The others have no checkpoints.
    CheckConstraint("kind = 'train' OR NOT pause_requested", name="pause_requested"),
    CheckConstraint("epochs >= 1", name="epochs"),
    CheckConstraint("batch_size >= 1", name="batch_size"),
    CheckConstraint("learning_rate > 0 AND learning_rate < 'infinity'", name="learning_rate"),
    CheckConstraint("validation >= 0 AND validation < 1", name="validation"),
    CheckConstraint("memory_limit_nbytes > 0", name="memory_limit"),
    CheckConstraint("jsonb_typeof(settings) = 'object'", name="settings"),
    CheckConstraint("error_sqlstate ~ '^[0-9A-Z]{5}$'", name="error_sqlstate"),
    Index("jobs_claim_idx", text("priority DESC"), "id", postgresql_where=_LIVE),
    # A model is served by one job at a time.
    Index(
        "jobs_served_model_idx",
        "model_id",
        unique=True,
        postgresql_where=text("kind = 'serve' AND state IN ('queued', 'waiting', 'running')"),
    ),
    Index(
        "jobs_alike_idx",
        "architecture",
        "batch_size",
        "optimizer",
        "source_oid",
        "id",
        postgresql_where=text("vanilla_peak_nbytes IS NOT NULL OR needed_nbytes IS NOT NULL"),
    ),
    Index("jobs_submitted_by_idx", "submitted_by"),
    Index("jobs_search_id_idx", "search_id", postgresql_where=text("search_id IS NOT NULL")),
    comment="Every job: the request, its way through a worker, and how far it has come.",
)

job_events = Table(
    "job_events",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="Orders the events."),
    job_id(),
    instant("at", "When it happened.", now=True),
    Column("kind", Text, nullable=False, comment="What happened: a state, a plan, a checkpoint, a notice."),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb"), comment="Its particulars."),
    Index("job_events_job_id_idx", "job_id", "id"),
    # Whoever waits for a job asks twice a second, and a job may have many other events.
    Index("job_events_notices_idx", "job_id", postgresql_where=text("kind = 'notice'")),
    comment="What happened to each job, in order.",
)

predictions = Table(
    "predictions",
    metadata,
    job_id(primary_key=True),
    Column("ordinal", BigInteger, primary_key=True, autoincrement=False, comment="The row's place, from 0."),
    Column("row_key", Text, comment="Names the source's row: its primary key, else its place."),
    Column("prediction", Text, comment="The class, or the number as text."),
    Column("probability", Double, comment="Of that class; NULL for a number."),
    Column(
        "probabilities",
        ARRAY(Double),
        comment="Of each class, in the model's order; NULL where they were not asked for.",
    ),
    comment="What predict jobs made, until tensile_predict has returned it.",
)
