"""Whether a catalog is where its numbers hold, and the names of roles beside them.

A dump takes numbers of roles and tables along as they are; another cluster, or database, has others.
"""

import psycopg
from sqlalchemy import Connection, func, select, text

from tensile_db.catalog.engine import ENCODING


def is_home(dsn: str) -> bool:
    """Tell whether the numbers in a database's catalog are its own.  Raises psycopg.Error."""
    with psycopg.connect(dsn, client_encoding=ENCODING) as connection:
        return connection.execute("SELECT tensile.is_home()").fetchone() == (True,)


def role_names(conn: Connection) -> dict[int, str]:
    """Return the names of all roles by number."""
    query = text("SELECT oid::bigint AS number, rolname::text AS name FROM pg_catalog.pg_roles")
    return {row.number: row.name for row in conn.execute(query)}


def refresh_names(conn: Connection) -> int:
    """Bring the names beside the numbers of owners up to date; return how many rows have another one now.

    Rows that others have locked are left as they are.
    """
    return int(conn.execute(select(func.tensile.refresh_names())).scalar_one())
