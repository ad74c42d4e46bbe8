"""Latencies of kinds of ops: what was measured, and what was learned from it."""

from sqlalchemy import BigInteger, Column, Double, Identity, Index, Integer, PrimaryKeyConstraint, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from tensile_db.catalog.tables.base import count, instant, metadata

latency_samples = Table(
    "latency_samples",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="The sample."),
    Column(
        "hardware",
        Text,
        nullable=False,
        comment="What it was measured on: processor or GPU, threads, PyTorch's version.",
    ),
    Column("kind", Text, nullable=False, comment="The kind of op: the ATen operator."),
    Column("probe", Integer, nullable=False, comment="The small network that the op was part of."),
    Column(
        "features",
        JSONB,
        nullable=False,
        comment="Sizes, as logarithms to base 2, and parameters of the op, by name.",
    ),
    count("flops", "The op's floating point operations.", nullable=False),
    count("moved_nbytes", "What it reads and writes of device memory, in bytes.", nullable=False),
    Column(
        "utilization",
        Double,
        nullable=False,
        comment="The share of the device's arithmetic that others asked for meanwhile, from 0 to 1.",
    ),
    count("latency_ns", "The median of several runs, in ns.", nullable=False),
    instant("measured_at", "When it was measured.", now=True),
    Index("latency_samples_hardware_idx", "hardware", "probe"),
    comment="Ops measured by tensile-db calibrate, or by an idle worker.",
)

latency_models = Table(
    "latency_models",
    metadata,
    Column(
        "hardware",
        Text,
        comment="What it holds for: processor or GPU, threads, PyTorch's version.",
    ),
    Column("kind", Text, comment="The kind of op: the ATen operator."),
    Column(
        "network",
        JSONB(none_as_null=True),
        comment="The perceptron and the range it knows; NULL where too few shapes were measured.",
    ),
    Column(
        "roofline_scale",
        Double,
        nullable=False,
        comment="Measured latency over the roofline's, for ops that the network does not know.",
    ),
    Column("sample_count", Integer, nullable=False, comment="Samples it was learned from."),
    Column("held_out_count", Integer, comment="Samples that the errors are of."),
    Column("r_squared", Double, comment="Share of the variance of latencies explained, on shapes held out."),
    Column("r_squared_log", Double, comment="The same of the latencies' logarithms."),
    Column(
        "median_relative_error",
        Double,
        comment="Median of |predicted - measured| / measured, on shapes held out.",
    ),
    instant("trained_at", "When it was learned.", now=True),
    PrimaryKeyConstraint("hardware", "kind"),
    comment="What is known of the latency of each kind of op before a job has run.",
)
