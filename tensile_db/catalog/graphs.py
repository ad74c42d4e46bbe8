"""Captured graphs, kept once by digest.  The caller owns the transaction."""

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from tensile_db.catalog import schema
from tensile_db.catalog.many_rows import insert_rows
from tensile_db.graph import StepGraph

_TENSOR_COLUMNS = ("digest", "tensor_id", "nbytes", "dtype", "shape", "role", "persistent", "name")
_TENSOR_TYPES = ("text", "int4", "int8", "text", "int8[]", "text", "bool", "text")
_OP_COLUMNS = (
    "digest",
    "op_id",
    "target",
    "phase",
    "reads",
    "writes",
    "workspace_nbytes",
    "flops",
    "moved_nbytes",
    "recomputable",
)
_OP_TYPES = ("text", "int4", "text", "text", "int4[]", "int4[]", "int8", "int8", "int8", "bool")


def ensure(
    conn: Connection,
    graph: StepGraph,
    *,
    architecture: str,
    batch_size: int,
    image_size: int | None,
    optimizer: str | None,
) -> None:
    """Write the graph unless the catalog has it; waits for another transaction that writes the same."""
    query = (
        insert(schema.graphs)
        .values(
            digest=graph.digest,
            architecture=architecture,
            batch_size=batch_size,
            image_size=image_size,
            optimizer=optimizer,
            tensor_count=len(graph.tensors),
            op_count=len(graph.ops),
        )
        .on_conflict_do_nothing()
        .returning(schema.graphs.c.digest)
    )
    if conn.execute(query).first() is None:
        return
    insert_rows(
        conn,
        schema.graph_tensors,
        _TENSOR_COLUMNS,
        _TENSOR_TYPES,
        (
            (graph.digest, t.id, t.nbytes, t.dtype, list(t.shape), str(t.role), t.persistent, t.name)
            for t in graph.tensors
        ),
    )
    insert_rows(
        conn,
        schema.graph_ops,
        _OP_COLUMNS,
        _OP_TYPES,
        (
            (
                graph.digest,
                op.id,
                op.target,
                str(op.phase),
                list(op.reads),
                list(op.writes),
                op.workspace_nbytes,
                op.flops,
                op.moved_nbytes,
                op.recomputable,
            )
            for op in graph.ops
        ),
    )


def ensure_split(conn: Connection, graph: StepGraph, *, of: str) -> None:
    """Write a graph that was made by packing and splitting another one, whose rows must be there."""
    graphs = schema.graphs.c
    query = select(graphs.architecture, graphs.batch_size, graphs.image_size, graphs.optimizer)
    whole = conn.execute(query.where(graphs.digest == of)).one()
    ensure(
        conn,
        graph,
        architecture=whole.architecture,
        batch_size=whole.batch_size,
        image_size=whole.image_size,
        optimizer=whole.optimizer,
    )
