"""What a caller may read of a table, view or partitioned table.

Runs inside PostgreSQL, as the caller.
"""

import difflib
import re
from typing import Any, Literal, NamedTuple

from tensile_db.errors import (
    NEAREST,
    BadData,
    Forbidden,
    InvalidRequest,
    UndefinedColumn,
    UndefinedSource,
    format_value,
)
from tensile_db.udf.session import Session

#: What a column can be learned from; "other" can at most be a label.
Family = Literal["bytes", "array", "number", "text", "time", "other"]

#: pg_class.relkind of what rows can be read from.
_READABLE = {
    "r": "table",
    "p": "partitioned table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}
_UNREADABLE = {"i": "index", "I": "index", "S": "sequence", "c": "composite type", "t": "TOAST table"}

#: A query, given where a name is wanted.
_QUERY = re.compile(r"\s*(\(|(select|with|values|table)\b)", re.IGNORECASE)
#: What needs no quotes in SQL.
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_$]*")

_RELATION = """
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, c.relkind::text AS kind,
       c.relpersistence = 't' AS temporary,
       pg_catalog.quote_ident(n.nspname) AS schema,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS schema_usable
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = {oid}
"""

# Domains, and the elements of arrays, are followed down to the type under them.  Types by OID: 16 bool,
# 17 bytea, then int2, int4, int8, float4, float8 and numeric, then their arrays; 18 "char", which is in no
# category of texts since PostgreSQL 15, name, text, bpchar and varchar; date, time, timestamp, timestamptz,
# interval and timetz (pg_type.dat; they never change).
_COLUMNS = """
WITH RECURSIVE typed AS (
    SELECT attnum, attname, atttypid AS type, 0 AS depth FROM pg_catalog.pg_attribute
    WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT attnum, attname, CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE e.typarray END, depth + 1
    FROM typed JOIN pg_catalog.pg_type t ON t.oid = type
    LEFT JOIN pg_catalog.pg_type d ON d.oid = t.typelem AND d.typtype = 'd'
    LEFT JOIN pg_catalog.pg_type e ON e.oid = d.typbasetype
    WHERE t.typtype = 'd' OR e.typarray <> 0),
base AS (SELECT DISTINCT ON (attnum) attnum, attname, type FROM typed ORDER BY attnum, depth DESC)
SELECT c.attname::text AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type,
       CASE WHEN t.oid = 17 THEN 'bytes'
            WHEN t.oid IN (16, 21, 23, 20, 700, 701, 1700) THEN 'number'
            WHEN t.oid IN (1000, 1005, 1007, 1016, 1021, 1022, 1231) THEN 'array'
            WHEN t.oid IN (18, 19, 25, 1042, 1043) OR t.typtype = 'e' THEN 'text'
            WHEN t.oid IN (1082, 1083, 1114, 1184, 1186, 1266) THEN 'time'
            ELSE 'other' END AS family,
       t.oid IN (18, 21, 23, 20, 700, 701, 1700) OR t.typcategory IN ('S', 'E', 'B') AS labels,
       t.oid IN (700, 701, 1700) AS fractions,
       t.oid = 16 AS truth,
       a.attidentity <> '' OR a.attname::text ~ '(^|_)[iI][dD]$|[a-z0-9]I[dD]$'
       OR EXISTS (SELECT FROM pg_catalog.pg_index i
                  WHERE i.indrelid = {oid} AND i.indisprimary
                      AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])) AS key,
       pg_catalog.has_column_privilege({oid}, a.attnum, 'SELECT') AS readable
FROM base c JOIN pg_catalog.pg_type t ON t.oid = c.type
JOIN pg_catalog.pg_attribute a ON a.attrelid = {oid} AND a.attnum = c.attnum
ORDER BY a.attnum
"""


# As all values here no dataclass: each session would import inspect and ast for it.
class Column(NamedTuple):
    """A column of the source."""

    name: str
    #: As SQL writes it.
    type: str
    family: Family
    #: Whether its values can be labels or numbers to learn.
    labels: bool
    #: Whether they may have fractions, so that they are no classes.
    fractions: bool
    #: Whether its values are truth values.
    truth: bool
    #: Whether it only tells rows apart: primary key, identity, or named so.
    key: bool
    #: Whether the caller may read it.
    readable: bool


class Source(NamedTuple):
    """A relation that exists and has rows to read."""

    oid: int
    #: Qualified and quoted.
    name: str
    columns: tuple[Column, ...]

    def column(self, name: str, purpose: str) -> Column:
        """Return a column by its name.  Raises UndefinedColumn suggesting the nearest."""
        for column in self.columns:
            if column.name == name:
                return column
        nearest = difflib.get_close_matches(name, [c.name for c in self.columns], n=1, cutoff=NEAREST)
        raise UndefinedColumn(
            f'{self.name} has no column "{format_value(name)}" to be the {purpose}',
            hint=f'Did you mean "{nearest[0]}"?' if nearest else self.listed_columns(),
        )

    def listed_columns(self) -> str:
        """Return a sentence that names all columns."""
        names = ", ".join(column.name for column in self.columns)
        return f"It has: {names}." if names else "It has no columns."


def find_source(session: Session, oid: int | None) -> Source:
    """Return the relation.  Raises UndefinedSource, InvalidRequest, Forbidden."""
    if oid is None:
        raise InvalidRequest("the source is NULL", hint="Name a table or view: 'schema.table'.")
    relation = session.row(_RELATION, oid=("oid", oid))
    if relation is None:
        raise UndefinedSource(f"no table has the OID {oid}", hint="Name it: 'schema.table'.")
    name, kind = relation["name"], relation["kind"]
    if kind not in _READABLE:
        raise InvalidRequest(
            f"{name} is no table but {_article(_UNREADABLE.get(kind, 'other object'))}",
            hint="Give a table, a partitioned table or a view.",
        )
    if relation["temporary"]:
        raise InvalidRequest(
            f"{name} is a temporary {_READABLE[kind]}, which only this session can read",
            hint="Make an ordinary view of ordinary tables."
            if kind == "v"
            else "Make an ordinary or UNLOGGED table of it.",
        )
    if not relation["schema_usable"]:
        raise Forbidden(
            f"permission denied for schema {relation['schema']}",
            hint=f"Ask its owner: GRANT USAGE ON SCHEMA {relation['schema']} TO {_me(session)}.",
        )
    columns = tuple(Column(**row) for row in session.rows(_COLUMNS, oid=("oid", oid)))
    return Source(oid=oid, name=name, columns=columns)


def require_readable(session: Session, source: Source, columns: tuple[Column, ...]) -> None:
    """Refuse columns that the caller may not read.  Raises Forbidden."""
    for column in columns:
        if not column.readable:
            raise Forbidden(
                f'permission denied for column "{column.name}" of {source.name}',
                hint=f"Ask its owner: GRANT SELECT ON {source.name} TO {_me(session)}.",
            )


def require_rows(session: Session, source: Source, column: Column) -> None:
    """Refuse a source without a row that the caller sees.  Raises BadData."""
    name = session.quote_name(column.name)
    # Rows are dictionaries, in PL/Python of names in UTF-8.
    if not session.exists(f"SELECT {name} AS found FROM {source.name} LIMIT 1"):
        raise BadData(
            f"{source.name} has no rows",
            hint="Insert some; rows that a row-level security policy hides from you do not count.",
        )


def tell_changes(session: Session, oid: int, name: str) -> None:
    """Tell that what this transaction has changed in a source is not seen by others, workers among them."""
    # Counts may hold a transaction's that ended some seconds ago, and the lock may be this very statement's,
    # which has written nothing yet: each alone would tell of changes that there are not.
    changed = session.value(
        "WITH read AS (SELECT relid FROM tensile.read_with({oid}) AS relid)"
        " SELECT pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL"
        " AND EXISTS (SELECT FROM read r WHERE pg_catalog.pg_stat_get_xact_tuples_inserted(r.relid)"
        " + pg_catalog.pg_stat_get_xact_tuples_updated(r.relid)"
        " + pg_catalog.pg_stat_get_xact_tuples_deleted(r.relid) > 0)"
        " AND EXISTS (SELECT FROM read r JOIN pg_catalog.pg_locks l ON l.relation = r.relid"
        " WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation'"
        " AND l.mode = 'RowExclusiveLock'"
        " AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d"
        " WHERE d.datname = pg_catalog.current_database()))",
        oid=("oid", oid),
    )
    if changed:
        session.notice(f"what this transaction has changed in {name} is not seen before it is committed")


def missing_source(session: Session, arguments: dict[str, Any]) -> None:
    """Raise UndefinedSource for a name that is no relation's, suggesting the nearest readable one."""
    name: str = arguments["source"]
    if _QUERY.match(name):
        raise UndefinedSource(
            f'"{format_value(name)}" is a query, where the name of a table or view is wanted',
            hint="CREATE VIEW of the query, and give the view's name.",
        )
    known = session.rows(
        "SELECT c.relname::text AS name, pg_catalog.format('%I.%I', n.nspname, c.relname) AS qualified"
        " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'tensile')"
        " AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_t'"
        " AND pg_catalog.has_table_privilege(c.oid, 'SELECT') ORDER BY 2 LIMIT 10000"
    )
    last = name.rpartition(".")[2].strip('"')
    nearest = difflib.get_close_matches(last, [row["name"] for row in known], n=1, cutoff=NEAREST)
    qualified = [row["qualified"] for row in known if row["name"] in nearest]
    plain = all(_PLAIN_NAME.fullmatch(part) for part in name.split("."))
    otherwise = (
        "Is its schema in your search_path?"
        if plain or '"' in name
        else """Write a name with capital letters or other signs in quotes: '"My table"'."""
    )
    raise UndefinedSource(
        f'no table or view "{format_value(name)}"',
        hint=f"Did you mean {qualified[0]}?" if qualified else otherwise,
    )


def _me(session: Session) -> str:
    return session.quote_name(session.value("SELECT current_user::text"))


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
