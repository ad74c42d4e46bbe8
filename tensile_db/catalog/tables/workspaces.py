"""Workspaces of ops: what their kernels need of device memory beyond tensors, as it was measured."""

from sqlalchemy import Column, PrimaryKeyConstraint, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from tensile_db.catalog.tables.base import count, instant, metadata

op_workspaces = Table(
    "op_workspaces",
    metadata,
    Column(
        "hardware",
        Text,
        comment="What it was measured on: the GPU's model, and the versions of PyTorch, CUDA and cuDNN.",
    ),
    Column("digest", Text, comment="Of kind and signature."),
    Column("kind", Text, nullable=False, comment="The kind of op: the ATen operator."),
    Column(
        "signature",
        JSONB,
        nullable=False,
        comment="What else decides: arguments and results, tensors by dtype, size and stride.",
    ),
    count("workspace_nbytes", "The most that its kernels held beyond tensors, in bytes.", nullable=False),
    instant("measured_at", "When it was measured.", now=True),
    PrimaryKeyConstraint("hardware", "digest"),
    comment="Device memory that kernels need beyond their tensors, measured before a job is planned.",
)
