"""Captured graphs, kept once by digest.  The caller owns the transaction."""

from dataclasses import dataclass, replace

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A captured graph, and of what."""

    graph: StepGraph
    #: Empty where it has no name.
    architecture: str
    batch_size: int
    #: None: its rows are no images.
    image_size: int | None
    #: None: it trains nothing.
    optimizer: str | None

    def ensure(self, conn: Connection) -> None:
        """Write the graph unless the catalog has it, and keep others from deleting it in this transaction.

        Waits for another transaction that writes or deletes the same.
        """
        query = select(schema.graphs.c.digest).where(schema.graphs.c.digest == self.graph.digest)
        while conn.execute(query.with_for_update(read=True, key_share=True)).first() is None:
            if self._inserted(conn):
                _insert_parts(conn, self.graph)
                return

    def _inserted(self, conn: Connection) -> bool:
        """Insert the graph's own row, or return False if by now there is one."""
        query = (
            insert(schema.graphs)
            .values(
                digest=self.graph.digest,
                architecture=self.architecture,
                batch_size=self.batch_size,
                image_size=self.image_size,
                optimizer=self.optimizer,
                tensor_count=len(self.graph.tensors),
                op_count=len(self.graph.ops),
            )
            .on_conflict_do_nothing()
            .returning(schema.graphs.c.digest)
        )
        return conn.execute(query).first() is not None

    def ensure_rewritten(self, conn: Connection, graph: StepGraph) -> None:
        """Do the same with what was made of the graph by packing and splitting."""
        replace(self, graph=graph).ensure(conn)


def _insert_parts(conn: Connection, graph: StepGraph) -> None:
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
