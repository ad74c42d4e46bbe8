"""Models, their weights, and the checkpoints of jobs under way.

Weights lie in parts of at most 16 MiB: a field is limited to 1 GiB, and a backend holds a whole one.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, OID

from tensile_db.catalog.tables.base import SCHEMA, count, instant, job_id, metadata, one_of

#: The largest part of a weight, in bytes.
PART_NBYTES = 16 * 2**20

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
    UniqueConstraint("owned_by", "name", "version"),
    one_of("task", "classification", "regression"),
    Index("models_job_id_idx", "job_id"),
    comment="Trained models.",
)

model_weights = Table(
    "model_weights",
    metadata,
    Column("model_id", ForeignKey(f"{SCHEMA}.models.id", ondelete="CASCADE"), comment="The model."),
    Column("name", Text, comment="parameter/... or buffer/..., as the architecture names it."),
    Column("part", Integer, comment="From 0."),
    Column("dtype", Text, nullable=False, comment="The elements."),
    Column("shape", ARRAY(BigInteger), nullable=False, comment="Of the whole tensor, in elements."),
    Column("data", LargeBinary, nullable=False, comment="This part's bytes, little-endian, at most 16 MiB."),
    PrimaryKeyConstraint("model_id", "name", "part"),
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

checkpoint_tensors = Table(
    "checkpoint_tensors",
    metadata,
    Column(
        "checkpoint_id", ForeignKey(f"{SCHEMA}.checkpoints.id", ondelete="CASCADE"), comment="The checkpoint."
    ),
    Column("name", Text, comment="parameter/..., buffer/..., optimizer_state/... or loss_scale/..."),
    Column("part", Integer, comment="From 0."),
    Column("dtype", Text, nullable=False, comment="The elements."),
    Column("shape", ARRAY(BigInteger), nullable=False, comment="Of the whole tensor, in elements."),
    Column("data", LargeBinary, nullable=False, comment="This part's bytes, little-endian, at most 16 MiB."),
    PrimaryKeyConstraint("checkpoint_id", "name", "part"),
    comment="The tensors of checkpoints, a row for each part of one.",
)
