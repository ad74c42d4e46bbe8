"""Models, their weights, and the checkpoints of jobs under way."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, OID

from tensile_db.catalog.tables.base import SCHEMA, count, instant, job_id, metadata, one_of
from tensile_db.catalog.tables.parts import NAMES_OF_WEIGHTS, parts_of_tensors

models = Table(
    "models",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="The model."),
    Column("name", Text, nullable=False, comment="Its name, its owner's own."),
    Column("version", Integer, nullable=False, comment="From 1; training it again makes the next."),
    Column("owned_by", OID, nullable=False, comment="The role whose it is."),
    Column("owner", Text, nullable=False, comment="The name of that role then."),
    Column("job_id", ForeignKey(f"{SCHEMA}.jobs.id", ondelete="SET NULL"), comment="The job that made it."),
    Column("architecture", Text, nullable=False, comment="The network."),
    Column("task", Text, nullable=False, comment="What it predicts."),
    Column(
        "classes",
        JSONB(none_as_null=True),
        comment="The labels, in the order of the outputs; NULL for a number.",
    ),
    Column(
        "target_scaling",
        JSONB(none_as_null=True),
        comment="Mean and scale by which a number to predict was standardised; NULL: it was not.",
    ),
    Column("features", JSONB, nullable=False, comment="Kind, columns, shape and scaling of its input."),
    Column("target", Text, comment="The column it learned."),
    count("parameter_nbytes", "The size of its weights, in bytes.", nullable=False),
    Column("metrics", JSONB, nullable=False, server_default=text("'{}'::jsonb"), comment="How well it does."),
    instant("created_at", "When it was saved.", now=True),
    Column(
        "pinned",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Whether it stays the default of its name when newer versions are trained.",
    ),
    UniqueConstraint("owned_by", "name", "version"),
    one_of("task", "classification", "regression"),
    Index("models_job_id_idx", "job_id"),
    Index("models_pinned_key", "owned_by", "name", unique=True, postgresql_where=text("pinned")),
    comment="Trained models.",
)

model_weights = parts_of_tensors(
    "model_weights",
    of="model_id",
    owner="The model.",
    owners="models",
    names=NAMES_OF_WEIGHTS,
    comment="The weights of models, a row for each part of a tensor.",
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="The checkpoint."),
    job_id(),
    count("iteration", "Iterations done.", nullable=False),
    Column("attempt", Integer, nullable=False, comment="The attempt that made it."),
    Column("random_state", LargeBinary, comment="The state of the job's generator."),
    Column(
        "detail", JSONB, nullable=False, server_default=text("'{}'::jsonb"), comment="What else is needed."
    ),
    Column(
        "complete",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Whether all its tensors are here; no other one is ever resumed from.",
    ),
    instant("created_at", "When it was begun.", now=True),
    Index("checkpoints_job_id_idx", "job_id", "iteration"),
    comment="From where a job goes on when its worker is lost: the newest complete one is kept.",
)

checkpoint_tensors = parts_of_tensors(
    "checkpoint_tensors",
    of="checkpoint_id",
    owner="The checkpoint.",
    owners="checkpoints",
    names="parameter/..., buffer/..., optimizer_state/... or loss_scale/...",
    comment="The tensors of checkpoints, a row for each part of one.",
)
