"""Many rows in one statement, within the transaction of the connection that SQLAlchemy holds.

COPY FROM would be the means, but PostgreSQL refuses it to a role that row-level security applies to, and
the worker's is one.  One JSON document is parsed by the server instead: arrays included, and at several
times the speed of a statement a row.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy import Connection, Table

_LARGE_NBYTES = 2**18


def insert_rows(
    conn: Connection,
    table: Table,
    columns: Sequence[str],
    types: Sequence[str],
    rows: Iterable[Sequence[Any]],
) -> None:
    """Append rows of numbers, texts, truth values and lists of these; types: of the columns, in SQL."""
    document = json.dumps(
        [dict(zip(columns, row, strict=True)) for row in rows],
        allow_nan=False,
        separators=(",", ":"),
        # As in engine.py.
        ensure_ascii=False,
    )
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    definitions = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column), sql.SQL(kind))
        for column, kind in zip(columns, types, strict=True)
    )
    statement = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM json_to_recordset(%s) AS row ({})").format(
        identifier_of(table), names, names, definitions
    )
    with driver_of(conn).cursor() as cursor:
        cursor.execute(statement, [document])


def insert_large_rows(
    conn: Connection, table: Table, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Append rows whose last column is bytes, in binary."""
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        identifier_of(table),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join([sql.SQL("%b")] * len(columns)),
    )
    small: list[Sequence[Any]] = []
    with driver_of(conn).cursor() as cursor:
        for row in rows:
            if len(row[-1]) < _LARGE_NBYTES:
                small.append(row)
            else:
                cursor.execute(statement, row)
        # Without waiting for each; for large rows that is slower, as libpq's buffer then grows.
        cursor.executemany(statement, small)


def driver_of(conn: Connection) -> psycopg.Connection:
    """Return psycopg's connection beneath."""
    raw = conn.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    return raw


def identifier_of(table: Table) -> sql.Identifier:
    """Return the table's name with its schema."""
    return sql.Identifier(*(name for name in (table.schema, table.name) if name))
