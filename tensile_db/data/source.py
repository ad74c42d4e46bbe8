"""What a job reads: the relation as it is now, its columns, and how to ask the server for them.

Runs in the worker, within the transaction that reads the rows, as the submitter.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import psycopg
from psycopg import Connection, sql

from tensile_db.data.columns import TID_WIRE, Column, Form, Nulls
from tensile_db.data.relation import (
    FoundColumn,
    RelationName,
    column_named,
    find_columns,
    find_primary_key,
    find_relation,
    has_readable_places,
)
from tensile_db.data.server_errors import sentence
from tensile_db.data.session_user import require_no_session_user
from tensile_db.errors import AmbiguousTarget, InvalidRequest, UndefinedColumn, UndefinedSource
from tensile_db.udf.sql_text import as_literal

Task = Literal["classification", "regression"]

#: A target that goes without saying, by its name.
TARGET_NAMES = ("label", "target", "y", "class")

_CASTS = {
    "text": sql.SQL("pg_catalog.text"),
    "float8": sql.SQL("pg_catalog.float8"),
    "float8[]": sql.SQL("pg_catalog.float8[]"),
}

_UNDEFINED_COLUMN, _UNDEFINED_TABLE = "42703", "42P01"

#: A column of this name that holds whole numbers is taken to name the row, not to describe it.
_ID = "id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A relation and the columns that a job reads from it."""

    relation: int
    name: RelationName
    #: One column of bytes or arrays, or columns of numbers, texts and times.
    features: tuple[Column, ...]
    target: Column | None
    #: None without a target.
    task: Task | None
    #: Of truth values: which rows are held out; None: a share of them is.
    held_out: Column | None
    #: What names a row: the column that was asked for, or the primary key, in whose order the rows are read;
    #: None for a view's rows, which have but their place in the result.
    key: Column | None
    #: Names of the columns of that key; empty where it is the row's ctid or there is none.
    key_columns: tuple[str, ...]
    #: Whether rows are ordered by their keys as texts, for some types have no order.
    orders_by_text: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """All columns in the order in which they are sent: features, target, those held out, key."""
        others = (self.target, self.held_out, self.key)
        return (*self.features, *(c for c in others if c is not None))

    def select_statement(self) -> sql.Composed:
        """Return the query whose rows are one bytea each: the columns, as record_send() packs them.

        In the order of the key, so that it survives an UPDATE or VACUUM FULL; else in that of the table's
        blocks, which a sequential scan alone, unsynchronized, yields.
        """
        read = (*self.features, *(c for c in (self.target, self.held_out) if c is not None))
        values = [_value(c) for c in read]
        if self.key is not None:
            values.append(self._key_value(self.key))
        order: sql.Composable = sql.SQL("")
        if self.key_columns:
            order = sql.SQL(" ORDER BY ") + sql.SQL(", ").join(map(self._place_in_order, self.key_columns))
        condition: sql.Composable = sql.SQL("")
        if self.target is not None and self.target.nulls is Nulls.LEFT_OUT:
            condition = sql.SQL(" WHERE {} IS NOT NULL").format(_qualified(self.target.name))
        return sql.SQL("SELECT pg_catalog.record_send(ROW({})) FROM {} AS source{}{}").format(
            sql.SQL(", ").join(values), self.name.identifier, condition, order
        )

    def _place_in_order(self, name: str) -> sql.Composable:
        if not self.orders_by_text:
            return _qualified(name)
        return sql.SQL('{}::pg_catalog.text COLLATE "C"').format(_qualified(name))

    def _key_value(self, key: Column) -> sql.Composable:
        if len(self.key_columns) < 2:
            return _value(key)
        names = sql.SQL(", ").join(_qualified(name) for name in self.key_columns)
        return sql.SQL("ROW({})::pg_catalog.text").format(names)


def describe(
    connection: Connection[Any],
    relation: int,
    *,
    features: Sequence[str] | None,
    target: str | None,
    wants_target: bool,
    task: Task | None = None,
    known_as: str = "",
    nulls: Nulls = Nulls.REFUSED,
    key: str | None = None,
    held_out: str | None = None,
    null_targets: Nulls = Nulls.REFUSED,
) -> Source:
    """Return the relation with this OID and the columns to read, inferring those that were not named.

    features: None for the one column of bytea or arrays, else all numbers but the key.
    target: None for the one column named label, target, y or class.
    known_as: the relation's name when it was asked for, for an error.
    nulls: what becomes of rows in which a feature, a number or text, is NULL.
    null_targets: what becomes of rows in which the target is.
    key: the column that names rows, and orders them; None for the primary key.
    held_out: the column that tells which rows are held out; None where it is a share of them.

    Raises UndefinedSource, UndefinedColumn, AmbiguousTarget, InvalidRequest, Forbidden, Unsupported.
    """
    name = find_relation(connection, relation, known_as)
    require_no_session_user(connection, relation)
    found = find_columns(connection, relation)
    key_columns = find_primary_key(connection, relation, found) if key is None else (key,)
    if key is not None:
        column_named(found, key).require_readable()
    learned = None
    if wants_target:
        learned = replace(_target(found, target, name.name).usable("target"), nulls=null_targets)
    reserved = {*key_columns, *([learned.name] if learned else []), *([held_out] if held_out else [])}
    return Source(
        relation=relation,
        name=name,
        features=tuple(
            replace(column, nulls=nulls) if column.form in (Form.FIXED, Form.TEXT) else column
            for column in _features(found, features, reserved)
        ),
        target=learned,
        task=_task(learned, task) if learned else None,
        held_out=None if held_out is None else _truth_values(column_named(found, held_out)),
        key=_key(connection, relation, found, key_columns),
        key_columns=key_columns,
        orders_by_text=key is not None and found[key].column is None,
    )


def missing_relation_or_column(
    error: psycopg.Error, source: Source | None
) -> UndefinedSource | UndefinedColumn | None:
    """Return what to tell of a table or column that is not there any more; None for another error.

    error: of the statement that reads the source.  What a view's functions miss is missing in other queries.
    source: None before it is known.
    """
    query = None if source is None else source.select_statement().as_string()
    inner, position = error.diag.internal_query, error.diag.internal_position
    # What is missing within a function has a context.
    is_own = inner == query if inner is not None else error.diag.context is None
    if error.sqlstate == _UNDEFINED_TABLE and is_own:
        return UndefinedSource(sentence(error), hint="It was dropped; submit the job again.")
    if source is None or query is None or position is None:
        return None
    if error.sqlstate != _UNDEFINED_COLUMN or inner != query:
        return None
    rest = query[int(position) - 1 :]
    names = [*(column.name for column in source.columns), *source.key_columns]
    gone = next((name for name in names if rest.startswith(_qualified(name).as_string())), None)
    if gone is None:
        return None
    return UndefinedColumn(
        f'{source.name.name} has no column "{gone}" any more',
        hint="It was renamed or dropped after the job was submitted; submit the job again.",
    )


def _target(found: dict[str, FoundColumn], name: str | None, relation_name: str) -> FoundColumn:
    if name is not None:
        return column_named(found, name)
    candidates = [known for known in found if known.lower() in TARGET_NAMES]
    if len(candidates) == 1:
        return found[candidates[0]]
    if candidates:
        raise AmbiguousTarget(
            f"""several columns of "{relation_name}" could be the target: {", ".join(candidates)}""",
            hint=f"Name one: target => '{candidates[0]}'.",
        )
    raise UndefinedColumn(
        f'no column of "{relation_name}" is named {", ".join(TARGET_NAMES[:-1])} or {TARGET_NAMES[-1]}',
        hint="Name the column to learn: target => '...'.",
    )


def _features(
    found: dict[str, FoundColumn], names: Sequence[str] | None, reserved: set[str]
) -> tuple[Column, ...]:
    if names is None:
        return _inferred_features(found, reserved)
    if not names:
        raise InvalidRequest("no features", hint="Name at least one column, or none for the default.")
    if len(set(names)) < len(names):
        raise InvalidRequest("a column is named twice among the features", hint="Name each column once.")
    chosen = tuple(column_named(found, name).usable("feature") for name in names)
    for feature in chosen:
        if feature.form not in (Form.FIXED, Form.TEXT) and len(chosen) > 1:
            raise InvalidRequest(
                f'column "{feature.name}" cannot be used together with other features',
                hint="Use one column of images or arrays, or several of numbers, texts and times.",
            )
    return chosen


def _inferred_features(found: dict[str, FoundColumn], reserved: set[str]) -> tuple[Column, ...]:
    columns = [f.column for f in found.values() if f.name not in reserved and f.may_read and f.column]
    whole = [c for c in columns if c.form in (Form.BYTES, Form.ARRAY)]
    if len(whole) > 1:
        names = ", ".join(f'"{c.name}"' for c in whole)
        raise InvalidRequest(
            f"several columns could be the features: {names}",
            hint=f"Name one: features => ARRAY[{as_literal(whole[0].name)}].",
        )
    if whole:
        return (whole[0],)
    numbers = tuple(
        c
        for c in columns
        if c.form is Form.FIXED and not c.time and not (c.name.lower() == _ID and c.is_integer)
    )
    if not numbers:
        raise UndefinedColumn(
            "no column could be a feature",
            hint="Images are bytea or arrays of numbers; other features are columns of numbers, or of texts"
            " and times that are named.",
        )
    return numbers


def _truth_values(found: FoundColumn) -> Column:
    column = found.usable("held_out")
    if not column.is_boolean:
        raise InvalidRequest(
            f'column "{found.name}" of type {found.type_name} does not tell which rows are held out',
            hint="Name a boolean column, which is true in these rows.",
        )
    return column


def _key(
    connection: Connection[Any], relation: int, found: dict[str, FoundColumn], names: tuple[str, ...]
) -> Column | None:
    if len(names) == 1:
        only = found[names[0]].column
        if only is not None and only.form is Form.FIXED and only.is_integer:
            return only
        return Column(name=names[0], form=Form.TEXT, cast="text")
    if names:
        return Column(name="(" + ", ".join(names) + ")", form=Form.TEXT, cast="text")
    if not has_readable_places(connection, relation):
        return None
    return Column(name="ctid", form=Form.FIXED, wire=TID_WIRE)


def _task(target: Column, asked: Task | None) -> Task:
    if target.form in (Form.BYTES, Form.ARRAY):
        raise InvalidRequest(
            f'column "{target.name}" cannot be a target',
            hint="A target is a whole number, text, enum or boolean (a class), or a number to predict.",
        )
    names_classes = target.form is Form.TEXT or target.is_boolean
    if asked == "regression" and names_classes:
        raise InvalidRequest(
            f'column "{target.name}" holds no numbers, so it cannot be the target of a regression',
            hint="Leave out the option task, or name a column of numbers.",
        )
    if asked == "classification" and not names_classes and not target.is_integer:
        raise InvalidRequest(
            f'column "{target.name}" is of a type that has fractions, which are no classes',
            hint="Cast it to integer or text in a view, or leave out the option task.",
        )
    if asked is not None:
        return asked
    return "classification" if names_classes or target.is_integer else "regression"


def _value(column: Column) -> sql.Composable:
    value = _qualified(column.name)
    if column.time:
        return sql.SQL("pg_catalog.date_part('epoch', {})").format(value)
    if not column.cast:
        return value
    return sql.SQL("{}::{}").format(value, _CASTS[column.cast])


def _qualified(name: str) -> sql.Identifier:
    return sql.Identifier("source", name)
