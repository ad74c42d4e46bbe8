"""Captured graphs: one training step of an architecture at a batch shape, op by op."""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from tensile_db.catalog.tables.base import SCHEMA, count, instant, job_id, metadata, one_of

graphs = Table(
    "graphs",
    metadata,
    Column("digest", Text, primary_key=True, comment="Of all that the graph consists of."),
    Column("architecture", Text, nullable=False, comment="The network."),
    Column("batch_size", Integer, nullable=False, comment="Rows an iteration."),
    Column("image_size", Integer, comment="Pixels a side; NULL where there is no image."),
    Column("optimizer", Text, comment="NULL for a step that only goes forward."),
    Column("tensor_count", Integer, nullable=False, comment="How many tensors."),
    Column("op_count", Integer, nullable=False, comment="How many ops."),
    instant("created_at", "When it was first captured.", now=True),
    comment="Captured steps, shared by all jobs with the same one.",
)


def _digest() -> Column[str]:
    return Column("digest", ForeignKey(f"{SCHEMA}.graphs.digest", ondelete="CASCADE"), comment="The graph.")


graph_tensors = Table(
    "graph_tensors",
    metadata,
    _digest(),
    Column("tensor_id", Integer, comment="The tensor: a storage."),
    count("nbytes", "Its size in bytes.", nullable=False),
    Column("dtype", Text, nullable=False, comment="Its elements."),
    Column("shape", ARRAY(BigInteger), nullable=False, comment="Its size in elements."),
    Column("role", Text, nullable=False, comment="What it is for."),
    Column("persistent", Boolean, nullable=False, comment="Whether it lives from iteration to iteration."),
    Column("name", Text, comment="The name of a persistent one."),
    PrimaryKeyConstraint("digest", "tensor_id"),
    one_of("role", "parameter", "buffer", "optimizer_state", "input", "activation", "gradient", "output"),
    comment="The tensors of each graph.",
)

graph_ops = Table(
    "graph_ops",
    metadata,
    _digest(),
    Column("op_id", Integer, comment="The op, in eager's order."),
    Column("target", Text, nullable=False, comment="The ATen operator."),
    Column("phase", Text, nullable=False, comment="Where in the step it stands."),
    Column("reads", ARRAY(Integer), nullable=False, comment="The tensors it reads."),
    Column("writes", ARRAY(Integer), nullable=False, comment="The tensors it writes."),
    count("workspace_nbytes", "What it holds only while it runs, in bytes."),
    count("flops", "Its floating point operations."),
    count("moved_nbytes", "What it reads and writes of device memory, in bytes."),
    Column("recomputable", Boolean, nullable=False, comment="Whether it may be run again."),
    PrimaryKeyConstraint("digest", "op_id"),
    one_of("phase", "forward", "backward", "optimizer"),
    comment="The ops of each graph, in order.",
)

latency_logs = Table(
    "latency_logs",
    metadata,
    job_id(primary_key=True),
    Column("op_id", Integer, primary_key=True, autoincrement=False, comment="The op of the captured graph."),
    Column("plan_version", Integer, comment="The plan it last ran under."),
    instant("measured_at", "When it was last measured.", now=True),
    count("iteration", "In which iteration that was."),
    count("latency_ns", "The newest measurement, in ns."),
    count("ewma_ns", "Its moving average, in ns."),
    count("predicted_ns", "What was predicted before the job ever ran, in ns."),
    comment="How long each op of each job takes: one row an op, updated as it is sampled.",
)
