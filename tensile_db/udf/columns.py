"""Which columns of a source are learned from, and which one is learned.

Runs inside PostgreSQL.
"""

from collections.abc import Mapping
from typing import Any

from tensile_db.errors import AmbiguousTarget, InvalidRequest, UndefinedColumn
from tensile_db.udf.source import Column, Source
from tensile_db.udf.sql_text import as_literal

TARGET_NAMES = ("label", "target", "y", "class")


def find_target(source: Source, name: str | None) -> Column:
    """Return the column to learn.

    Raises UndefinedColumn, AmbiguousTarget; InvalidRequest for a type that is no label.
    """
    if name is None:
        found = [column.name for column in source.columns if column.name.lower() in TARGET_NAMES]
        if not found:
            raise UndefinedColumn(
                f"{source.name} has no column named {', '.join(TARGET_NAMES[:-1])} or {TARGET_NAMES[-1]}",
                hint=f"Name the column to learn: target => '...'. {source.listed_columns()}",
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
    source: Source, names: list[str] | None, reserved: tuple[Column, ...], *, wants_images: bool
) -> tuple[Column, ...]:
    """Return the columns to learn from: one of images or arrays, or several of numbers, texts and times.

    names: None leaves the choice to what the columns hold; texts and times only where they are named.
    reserved: the target, and what else is read and never a feature.
    wants_images: the network takes images, so that numbers are no choice; otherwise numbers come first.
    Raises UndefinedColumn, InvalidRequest.
    """
    if names is not None:
        return _named_features(source, names, reserved, wants_images=wants_images)
    usable = [column for column in source.columns if column not in reserved and not column.key]
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
                hint=f"Name one: features => ARRAY[{as_literal(found[0].name)}].",
            )
    if of["number"]:
        raise InvalidRequest(
            f"the architecture learns from images, and {source.name} has none",
            hint='Use the architecture "mlp" for numeric columns, or a column of type bytea or real[].',
        )
    raise UndefinedColumn(
        f"{source.name} has no column to learn from",
        hint="Features are a bytea or numeric array column, or numeric columns; keys, texts and times"
        " are none, unless named: features => '{...}'.",
    )


def find_others(source: Source, options: Mapping[str, Any], target: Column) -> tuple[Column, ...]:
    """Return the columns that options name: what names rows, and what tells which are held out.

    Raises UndefinedColumn, InvalidRequest for one that does not tell.
    """
    found = {
        name: source.column(options[name], f'column of the option "{name}"')
        for name in ("key", "held_out")
        if name in options
    }
    if "held_out" in found and not found["held_out"].truth:
        raise InvalidRequest(
            f'the column "{found["held_out"].name}" of type {found["held_out"].type} does not tell which rows'
            " are held out",
            hint="Name a boolean column, which is true in these rows: a view can make one.",
        )
    if target in found.values():
        raise InvalidRequest(
            f'"{target.name}" is the target, and does not tell which row it is, or which are held out',
            hint="Name another column.",
        )
    return tuple(found.values())


def columns_of_model(source: Source, model: str, purposes: Mapping[str, str]) -> dict[str, Column]:
    """Return the columns that a model needs, by name.

    purposes: by name, "feature" or "target".  Raises UndefinedColumn where the source lacks one.
    """
    try:
        return {name: source.column(name, purpose) for name, purpose in purposes.items()}
    except UndefinedColumn as error:
        # Names that are near are no help here: the model needs these.
        there = ", ".join(column.name for column in source.columns) or "no columns"
        raise UndefinedColumn(
            error.message,
            hint=f'The model "{model}" needs {", ".join(purposes)}; {source.name} has {there}.'
            " Give a view that has them.",
        ) from error


def _named_features(
    source: Source, names: list[str], reserved: tuple[Column, ...], *, wants_images: bool
) -> tuple[Column, ...]:
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
        if column == reserved[0]:
            raise InvalidRequest(
                f'"{column.name}" is both a feature and the target', hint="Leave it out of features."
            )
        if column in reserved:
            raise InvalidRequest(
                f'"{column.name}" is both a feature and the key, or what tells which rows are held out',
                hint="Leave it out of features.",
            )
        if column.family == "other":
            raise InvalidRequest(
                f'the feature "{column.name}" is of type {column.type}, which cannot be learned from',
                hint="Features are bytea, arrays, numbers, booleans, texts, enums or times.",
            )
    if len(columns) > 1 and any(column.family in ("bytes", "array") for column in columns):
        raise InvalidRequest(
            f"a column of images or arrays cannot be combined with others: {', '.join(names)}",
            hint="Name one bytea or array column, or columns of numbers, texts and times.",
        )
    if wants_images and columns[0].family not in ("bytes", "array"):
        raise InvalidRequest(
            f'the architecture learns from images, and the column "{columns[0].name}" of type'
            f" {columns[0].type} holds none",
            hint='Use the architecture "mlp", or name a column of type bytea or real[].',
        )
    return columns
