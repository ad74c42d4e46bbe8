"""Whether a catalog is where its numbers of roles and tables hold, and the names beside them.

A dump takes numbers along as they are; another cluster, or database, has others.  The caller owns the
transaction.
"""

from sqlalchemy import Connection, func, select, text


def is_at_home(conn: Connection) -> bool:
    """Tell whether the catalog's numbers of roles and tables are those of its database."""
    return bool(conn.execute(select(func.tensile.is_at_home())).scalar_one())


def role_names(conn: Connection) -> dict[int, str]:
    """Return the names of all roles by number."""
    query = text("SELECT oid::bigint AS number, rolname::text AS name FROM pg_catalog.pg_roles")
    return {row.number: row.name for row in conn.execute(query)}


def refresh_names(conn: Connection) -> int:
    """Bring the names beside the numbers of owners up to date; return how many rows others have locked."""
    return int(conn.execute(select(func.tensile.refresh_names())).scalar_one())
