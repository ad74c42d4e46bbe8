"""What a caller may read of a table, view or partitioned table, and which columns to learn from.

Runs inside PostgreSQL, as the caller.
"""

import difflib
from dataclasses import dataclass
from typing import Any, Literal

from tensile_db.errors import (
    AmbiguousTarget,
    BadData,
    Forbidden,
    InvalidRequest,
    UndefinedColumn,
    UndefinedSource,
)
from tensile_db.udf.session import Session

#: What a column can be learned from; "other" can at most be a label.
Family = Literal["bytes", "array", "number", "other"]

TARGET_NAMES = ("label", "target", "y", "class")

#: pg_class.relkind of what rows can be read from.
_READABLE = {
    "r": "table",
    "p": "partitioned table",
    "v": "view",
    "m": "materialized view",
    "f": "foreign table",
}
_UNREADABLE = {"i": "index", "I": "index", "S": "sequence", "c": "composite type", "t": "TOAST table"}

_RELATION = """
SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname) AS name, c.relkind::text AS kind,
       c.relpersistence = 't' AS temporary,
       pg_catalog.quote_ident(n.nspname) AS schema,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS schema_usable
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = {oid}
"""

# Domains are followed down to the type under them.  Types by OID: 16 bool, 17 bytea, then int2, int4, int8,
# float4, float8 and numeric, then their arrays (pg_type.dat; they never change).
_COLUMNS = """
WITH RECURSIVE typed AS (
    SELECT attnum, attname, atttypid AS type FROM pg_catalog.pg_attribute
    WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped
  UNION ALL
    SELECT attnum, attname, typbasetype FROM typed JOIN pg_catalog.pg_type t ON t.oid = type
    WHERE typtype = 'd')
SELECT c.attname::text AS name, pg_catalog.format_type(a.atttypid, a.atttypmod) AS type,
       CASE WHEN t.oid = 17 THEN 'bytes'
            WHEN t.oid IN (16, 21, 23, 20, 700, 701, 1700) THEN 'number'
            WHEN t.oid IN (1000, 1005, 1007, 1016, 1021, 1022, 1231) THEN 'array'
            ELSE 'other' END AS family,
       t.oid IN (21, 23, 20, 700, 701, 1700) OR t.typcategory IN ('S', 'E', 'B') AS labels,
       a.attidentity <> '' OR a.attname = 'id' OR pg_catalog.right(a.attname::text, 3) = '_id'
       OR EXISTS (SELECT FROM pg_catalog.pg_index i
                  WHERE i.indrelid = {oid} AND i.indisprimary AND a.attnum = ANY (i.indkey)) AS key,
       pg_catalog.has_column_privilege({oid}, a.attnum, 'SELECT') AS readable
FROM typed c JOIN pg_catalog.pg_type t ON t.oid = c.type AND t.typtype <> 'd'
JOIN pg_catalog.pg_attribute a ON a.attrelid = {oid} AND a.attnum = c.attnum
ORDER BY a.attnum
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the source."""

    name: str
    #: As SQL writes it.
    type: str
    family: Family
    #: Whether its values can be labels or numbers to learn.
    labels: bool
    #: Whether it only tells rows apart: primary key, identity, or named so.
    key: bool
    #: Whether the caller may read it.
    readable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
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
        names = [column.name for column in self.columns]
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        raise UndefinedColumn(
            f'{self.name} has no column "{name}" to be the {purpose}',
            hint=f'Did you mean "{nearest[0]}"?' if nearest else f"It has: {', '.join(names)}.",
        )


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
            f"{name} is a temporary table, which only this session can read",
            hint="Make an ordinary or UNLOGGED table of it.",
        )
    if not relation["schema_usable"]:
        raise Forbidden(
            f"permission denied for schema {relation['schema']}",
            hint=f"Ask its owner: GRANT USAGE ON SCHEMA {relation['schema']} TO {_me(session)}.",
        )
    columns = tuple(Column(**row) for row in session.rows(_COLUMNS, oid=("oid", oid)))
    return Source(oid=oid, name=name, columns=columns)


def find_target(source: Source, name: str | None) -> Column:
    """Return the column to learn.

    Raises UndefinedColumn, AmbiguousTarget; InvalidRequest for a type that is no label.
    """
    if name is None:
        found = [column.name for column in source.columns if column.name.lower() in TARGET_NAMES]
        if not found:
            raise UndefinedColumn(
                f"{source.name} has no column named {', '.join(TARGET_NAMES[:-1])} or {TARGET_NAMES[-1]}",
                hint="Name the column to learn: target => '...'. "
                f"It has: {', '.join(column.name for column in source.columns)}.",
            )
        if len(found) > 1:
            raise AmbiguousTarget(
                f"several columns of {source.name} could be the target: {', '.join(found)}",
                hint=f"Name one: target => '{found[0]}'.",
            )
        name = found[0]
    column = source.column(name, "target")
    if not column.labels:
        raise InvalidRequest(
            f'the target "{name}" is of type {column.type}, which is neither a label nor a number',
            hint="Name an integer, text, boolean or numeric column: target => '...'.",
        )
    return column


def find_features(
    source: Source, names: list[str] | None, target: Column, *, wants_images: bool
) -> tuple[Column, ...]:
    """Return the columns to learn from: one of images or arrays, or several of numbers.

    names: None leaves the choice to what the columns hold.
    wants_images: the network takes images, so that numbers are no choice; otherwise numbers come first.
    Raises UndefinedColumn, InvalidRequest.
    """
    if names is not None:
        return _named_features(source, names, target)
    usable = [column for column in source.columns if column.name != target.name and not column.key]
    of = {
        family: tuple(column for column in usable if column.family == family)
        for family in ("bytes", "array", "number")
    }
    for family in ("bytes", "array") if wants_images else ("number", "bytes", "array"):
        found = of[family]
        if found and (family == "number" or len(found) == 1):
            return found
        if found:
            raise InvalidRequest(
                f"{source.name} has several columns to learn from: {', '.join(c.name for c in found)}",
                hint=f"Name one: features => '{{{found[0].name}}}'.",
            )
    if of["number"]:
        raise InvalidRequest(
            f"the architecture learns from images, and {source.name} has none",
            hint='Use the architecture "mlp" for numeric columns, or a column of type bytea or real[].',
        )
    raise UndefinedColumn(
        f"{source.name} has no column to learn from",
        hint="Features are a bytea or numeric array column, or numeric columns; keys are none, unless named:"
        " features => '{...}'.",
    )


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


def missing_source(session: Session, arguments: dict[str, Any]) -> None:
    """Raise UndefinedSource for a name that is no relation's, suggesting the nearest readable one."""
    name: str = arguments["source"]
    known = session.rows(
        "SELECT c.relname::text AS name, pg_catalog.format('%I.%I', n.nspname, c.relname) AS qualified"
        " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'tensile')"
        " AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_t'"
        " AND pg_catalog.has_table_privilege(c.oid, 'SELECT') ORDER BY 2 LIMIT 10000"
    )
    last = name.rpartition(".")[2].strip('"')
    nearest = difflib.get_close_matches(last, [row["name"] for row in known], n=1, cutoff=0.5)
    qualified = [row["qualified"] for row in known if row["name"] in nearest]
    raise UndefinedSource(
        f'no table or view "{name}"',
        hint=f"Did you mean {qualified[0]}?" if qualified else "Is its schema in your search_path?",
    )


def _named_features(source: Source, names: list[str], target: Column) -> tuple[Column, ...]:
    if not names:
        raise InvalidRequest("features is empty", hint="Leave it out, or name at least one column.")
    if not all(isinstance(name, str) for name in names):
        raise InvalidRequest(
            "features has an element that is no column's name",
            hint="Give a list of names: features => '{a,b}'.",
        )
    if len(set(names)) < len(names):
        raise InvalidRequest("features names a column twice", hint="Name each column once.")
    columns = tuple(source.column(name, "feature") for name in names)
    for column in columns:
        if column.name == target.name:
            raise InvalidRequest(
                f'"{column.name}" is both a feature and the target', hint="Leave it out of features."
            )
        if column.family == "other":
            raise InvalidRequest(
                f'the feature "{column.name}" is of type {column.type}, which cannot be learned from',
                hint="Features are bytea, arrays, numbers or booleans.",
            )
    if len(columns) > 1 and any(column.family != "number" for column in columns):
        raise InvalidRequest(
            f"a column of images or arrays cannot be combined with others: {', '.join(names)}",
            hint="Name one bytea or array column, or numeric columns alone.",
        )
    return columns


def _me(session: Session) -> str:
    return session.quote_name(session.value("SELECT current_user::text"))


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
