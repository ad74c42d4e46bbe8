"""Many rows at once, by COPY in binary over the connection that SQLAlchemy holds."""

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Connection, Table


def copy_rows(
    conn: Connection,
    table: Table,
    columns: Sequence[str],
    types: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Append rows to a table, inside the connection's transaction; types: of the columns, as SQL names."""
    raw = conn.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        sql.Identifier(*(name for name in (table.schema, table.name) if name)),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
    )
    with raw.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(types)
        for row in rows:
            copy.write_row(row)
