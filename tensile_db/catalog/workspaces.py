"""Workspaces of ops that were measured, by hardware.  The caller owns the transaction."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from tensile_db.catalog import schema
from tensile_db.errors import Forbidden, NotInstalled


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceRow:
    """What the kernels of one op were seen to need."""

    #: Of kind and signature.
    digest: str
    kind: str
    signature: Mapping[str, Any]
    workspace_nbytes: int


def require(conn: Connection) -> None:
    """Raise NotInstalled or Forbidden where workspaces cannot be kept here by this role."""
    name = f"{schema.SCHEMA}.{schema.op_workspaces.name}"
    if conn.exec_driver_sql(f"SELECT to_regclass('{name}')").scalar_one() is None:
        raise NotInstalled(
            f"the database's tensile_db is older than this worker: it has no table {name}",
            hint="Bring it up to date: tensile-db install DSN.",
        )
    rights = ("SELECT", "INSERT", "UPDATE")
    may = conn.execute(select(*(func.has_table_privilege(name, right) for right in rights))).one()
    missing = [right for right, has in zip(rights, may, strict=True) if not has]
    if missing:
        raise Forbidden(
            f"the worker's role lacks {', '.join(missing)} on {name}, where workspaces of ops are kept",
            hint="GRANT tensile_worker TO the role, and let tensile-db install DSN put the rights in order.",
        )


def read(conn: Connection, hardware: str, digests: Collection[str]) -> dict[str, int]:
    """Return the workspaces that are known of these ops, bytes by digest."""
    workspaces = schema.op_workspaces.c
    query = select(workspaces.digest, workspaces.workspace_nbytes).where(
        workspaces.hardware == hardware, workspaces.digest == func.any(sorted(digests))
    )
    return {row.digest: row.workspace_nbytes for row in conn.execute(query)}


def write(conn: Connection, hardware: str, rows: Iterable[WorkspaceRow]) -> None:
    """Keep what was measured; of an op that another worker has measured, too, the larger figure.

    Locks the ops' rows, in one order for all.
    """
    values = [
        {
            "hardware": hardware,
            "digest": row.digest,
            "kind": row.kind,
            "signature": row.signature,
            "workspace_nbytes": row.workspace_nbytes,
        }
        for row in sorted(rows, key=lambda row: row.digest)
    ]
    if not values:
        return
    query = insert(schema.op_workspaces)
    replaced = {
        "workspace_nbytes": query.excluded.workspace_nbytes,
        "measured_at": query.excluded.measured_at,
    }
    conn.execute(
        query.on_conflict_do_update(
            index_elements=["hardware", "digest"],
            set_=replaced,
            where=schema.op_workspaces.c.workspace_nbytes < query.excluded.workspace_nbytes,
        ),
        values,
    )
