"""A relation in PostgreSQL's catalog: its name now, its columns, its primary key.

Runs in the worker, as the submitter, whose rights the answers tell.
"""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from psycopg import Connection, sql
from psycopg.rows import dict_row

from tensile_db.data.columns import Column, column
from tensile_db.errors import Forbidden, InvalidRequest, UndefinedColumn, UndefinedSource
from tensile_db.udf.sql_text import as_identifier

#: Tables, partitioned tables, views, materialized views, foreign tables.
_READABLE = "rpvmf"


#: Types of which there are epochs; not ranges or arrays of them.
_TIMES = re.compile(r"(date|interval|(time|timestamp) with(out)? time zone)")


class RelationName(NamedTuple):
    """The name of a relation."""

    schema: str
    name: str

    @property
    def identifier(self) -> sql.Identifier:
        """The name, to be put into a statement."""
        return sql.Identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundColumn:
    """A column in the catalog, whether or not it can be read."""

    name: str
    type_name: str
    may_read: bool
    #: None where its type cannot be read.
    column: Column | None

    def require_readable(self) -> None:
        """Raise Forbidden where it may not be read."""
        if not self.may_read:
            raise Forbidden(
                f'permission denied for column "{self.name}"', hint="Ask its owner to GRANT SELECT on it."
            )

    def usable(self, purpose: str) -> Column:
        """Return how to read it.  Raises Forbidden, InvalidRequest where its type cannot be read."""
        self.require_readable()
        if self.column is None or (purpose == "target" and self.column.time):
            raise InvalidRequest(
                f'column "{self.name}" has the type {self.type_name}, which cannot be a {purpose}',
                hint=f"{_advice(self.name, self.type_name, purpose)}, and name the view.",
            )
        return self.column


def _advice(name: str, type_name: str, purpose: str) -> str:
    """Return what a view could do with a column of a type that cannot be read."""
    if purpose != "target":
        return "Turn it into numbers in a view"
    quoted = as_identifier(name)
    is_time = _TIMES.fullmatch(type_name) is not None
    number = f" for a class or extract(epoch FROM {quoted}) for a number" if is_time else ""
    return f"Cast it in a view, as {quoted}::text{number}"


def find_relation(connection: Connection[Any], relation: int, known_as: str = "") -> RelationName:
    """Return the schema and name, now, of the relation with this OID.

    known_as: its name when it was asked for, for an error.
    Raises UndefinedSource, InvalidRequest where it holds no rows.
    """
    query = """
        SELECT n.nspname, c.relname, c.relkind::pg_catalog.text
        FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE c.oid = %s"""
    row = connection.execute(query, [relation]).fetchone()
    if row is None:
        raise UndefinedSource(
            f"{known_as or 'the table or view'} (OID {relation}) does not exist any more",
            hint="It was dropped after the job was submitted; with another in its place, submit it again.",
        )
    schema_name, relation_name, kind = row
    if kind not in _READABLE:
        raise InvalidRequest(f'"{relation_name}" is no table or view', hint="Name a table or a view.")
    return RelationName(schema_name, relation_name)


def find_columns(connection: Connection[Any], relation: int) -> dict[str, FoundColumn]:
    """Return the columns by name, in the table's order."""
    # A domain's values are sent as those of the type beneath, and so are the elements of arrays of it.
    query = """
        WITH RECURSIVE beneath AS (
            SELECT attnum, attname, atttypid, atttypid AS type, 0 AS depth FROM pg_catalog.pg_attribute
            WHERE attrelid = %(relation)s AND attnum > 0 AND NOT attisdropped
          UNION ALL
            SELECT b.attnum, b.attname, b.atttypid,
                CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE e.typarray END, b.depth + 1
            FROM beneath AS b JOIN pg_catalog.pg_type AS t ON t.oid = b.type
            LEFT JOIN pg_catalog.pg_type AS d ON d.oid = t.typelem AND d.typtype = 'd'
            LEFT JOIN pg_catalog.pg_type AS e ON e.oid = d.typbasetype
            WHERE t.typtype = 'd' OR e.typarray <> 0
        )
        SELECT DISTINCT ON (b.attnum) b.attname AS name, t.oid, t.typtype = 'e' AS is_enum,
               pg_catalog.format_type(b.atttypid, NULL) AS type_name,
               pg_catalog.has_column_privilege(%(relation)s::pg_catalog.oid, b.attnum, 'SELECT') AS may_read
        FROM beneath AS b JOIN pg_catalog.pg_type AS t ON t.oid = b.type
        ORDER BY b.attnum, b.depth DESC"""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(query, {"relation": relation}).fetchall()
    return {
        row["name"]: FoundColumn(
            name=row["name"],
            type_name=row["type_name"],
            may_read=row["may_read"],
            column=column(row["name"], row["oid"], is_enum=row["is_enum"]),
        )
        for row in rows
    }


def column_named(found: dict[str, FoundColumn], name: str) -> FoundColumn:
    """Return one column.  Raises UndefinedColumn."""
    if name not in found:
        names = ", ".join(f'"{known}"' for known in found)
        raise UndefinedColumn(
            f'column "{name}" does not exist', hint=f"There are: {names}." if names else "There are none."
        )
    return found[name]


def find_primary_key(
    connection: Connection[Any], relation: int, found: dict[str, FoundColumn]
) -> tuple[str, ...]:
    """Return the primary key's columns in its order; empty if there is none, or it must not be read.

    That of a table with children by inheritance tells its own rows apart, and not theirs.
    """
    query = """
        SELECT a.attname
        FROM pg_catalog.pg_index AS i
        CROSS JOIN LATERAL pg_catalog.unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
        JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
        WHERE i.indrelid = %s AND i.indisprimary AND i.indisvalid AND k.place <= i.indnkeyatts
            AND NOT (c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits WHERE inhparent = c.oid))
        ORDER BY k.place"""
    names = tuple(name for (name,) in connection.execute(query, [relation]))
    return names if all(found[name].may_read for name in names) else ()


def has_readable_places(connection: Connection[Any], relation: int) -> bool:
    """Whether its rows have a ctid of their own that may be read; that takes the right to the whole table."""
    query = """
        SELECT relkind IN ('r', 'm') AND pg_catalog.has_table_privilege(oid, 'SELECT')
            AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits WHERE inhparent = oid)
        FROM pg_catalog.pg_class WHERE oid = %s"""
    row = connection.execute(query, [relation]).fetchone()
    return bool(row and row[0])
