"""The model whose weights a training starts from, and what it decides about that training.

Runs inside PostgreSQL, as the caller.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from tensile_db.errors import InvalidRequest, format_json, format_value
from tensile_db.udf.columns import columns_of_model
from tensile_db.udf.models import model_of
from tensile_db.udf.options import NETWORK_OPTIONS, OPTIONS
from tensile_db.udf.session import Session
from tensile_db.udf.source import Column, Source
from tensile_db.udf.sql_text import as_identifier, as_literal

#: Options that say how features are made, which stays as it was.
_OF_FEATURES = frozenset({"nulls"})


class InitialModel(NamedTuple):
    """What a training takes over of a model."""

    id: int
    name: str
    version: int
    architecture: str
    #: "classification" or "regression".
    task: str
    target: str | None
    #: Names of the columns that it learned from, in order.
    columns: tuple[str, ...]
    #: The table or view that it learned from; None where its job is deleted.
    source_oid: int | None
    #: Whether it learned from images, in files or arrays.
    takes_images: bool
    #: Of its own training.
    options: Mapping[str, Any]

    def require_agreement(self, arguments: Mapping[str, Any]) -> None:
        """Refuse a training's arguments that contradict the model.  Raises InvalidRequest."""
        architecture = arguments["architecture"]
        if architecture is not None and architecture != self.architecture:
            raise InvalidRequest(
                f'the model "{self.name}" has the architecture "{self.architecture}", and a network'
                f' "{format_value(architecture)}" cannot start from its weights',
                hint=f'Give {as_literal(self.architecture)} as the architecture, or leave "start_from" out.',
            )
        given = {name: value for name, value in arguments["options"].items() if value is not None}
        # Told before any row is read; what other options do to shapes only the network knows.
        own = {"nulls": "refuse", **self.options}
        for option in ("hidden_units", "nulls"):
            if option in own and given.get(option, own[option]) != own[option]:
                raise InvalidRequest(
                    f'the option "{option}" is {format_json(own[option])} in the model "{self.name}" that the'
                    f" training starts from, not {format_json(given[option])}",
                    hint="Leave it out.",
                )
        if given.get("task", self.task) != self.task:
            learned = "a number" if self.task == "regression" else "classes"
            raise InvalidRequest(
                f'the model "{self.name}" that the training starts from predicts {learned}, and the option'
                f' "task" says {format_json(given["task"])}',
                hint="Leave it out.",
            )

    def filled_in(self, arguments: dict[str, Any], varying: Collection[str] = ()) -> dict[str, Any]:
        """Return a training's arguments, with the model's name and options where they leave these open.

        Options of its network and of its features, that is.

        varying: options that vary in a search.
        """
        given = {name: value for name, value in arguments["options"].items() if value is not None}
        own = {
            name: value
            for name, value in self.options.items()
            # What OPTIONS lacks is a package's.
            if name not in varying
            and (name in NETWORK_OPTIONS or name in _OF_FEATURES or name not in OPTIONS)
        }
        options = own | given | {"task": self.task, "start_from_version": self.version}
        model = self.name if arguments["model"] is None else arguments["model"]
        architecture = self.architecture if arguments["architecture"] is None else arguments["architecture"]
        return arguments | {"architecture": architecture, "model": model, "options": options}

    def target_in(self, source: Source) -> str | None:
        """Return the name of the model's target, where the source has such a column."""
        return self.target if any(column.name == self.target for column in source.columns) else None

    def require_target(self, target: Column) -> None:
        """Refuse a target that cannot be what the model predicts.  Raises InvalidRequest."""
        if self.task == "classification":
            wrong, learned, cast = target.fractions, "classes", "bigint"
        else:
            wrong, learned, cast = target.family != "number", "a number", "float8"
        if wrong:
            raise InvalidRequest(
                f'the model "{self.name}" that the training starts from predicts {learned}, and the target'
                f' "{target.name}" is of type {target.type}',
                hint=f"Cast it in a view, as by {as_identifier(target.name)}::{cast}, or name another.",
            )

    def features_in(self, source: Source, named: list[str] | None) -> list[str]:
        """Return the columns to learn from: the model's.

        named: those that were asked for.  Raises InvalidRequest where they are others, UndefinedColumn where
        the source lacks one.
        """
        columns = list(self.columns)
        if named is not None and list(named) != columns:
            raise InvalidRequest(
                f'features are {", ".join(map(format_value, named))}, but the model "{self.name}" that the'
                f" training starts from learned from {', '.join(columns)}, in this order",
                hint="Leave features out, and give a view whose columns have these names.",
            )
        columns_of_model(source, self.name, dict.fromkeys(columns, "feature"))
        return columns


def find_initial_model(session: Session, arguments: Mapping[str, Any]) -> InitialModel | None:
    """Return the model that a training's options name to start from; None where they name none.

    What is wrong with an option's value is left to `check_options`.
    Raises UndefinedModel, AmbiguousTarget; InvalidRequest where a version is given without a model.
    """
    options = arguments["options"]
    if not isinstance(options, dict):
        return None
    name, version = options.get("start_from"), options.get("start_from_version")
    if name is None and version is not None:
        raise InvalidRequest(
            'the option "start_from_version" says a version, and no model is named',
            hint='Name the model to start from, too: "start_from": "...".',
        )
    if name is None or OPTIONS["start_from"](name):
        return None
    if version is not None and OPTIONS["start_from_version"](version):
        return None
    model = model_of(session, name, version, settled=version is None)
    features = model["features"]
    return InitialModel(
        id=model["id"],
        name=model["name"],
        version=model["version"],
        architecture=model["architecture"],
        task=model["task"],
        target=model["target"],
        columns=tuple(features["columns"]),
        source_oid=session.value(
            "SELECT j.source_oid::bigint FROM tensile.models m JOIN tensile.jobs j ON j.id = m.job_id"
            " WHERE m.id = {id}",
            id=("bigint", model["id"]),
        ),
        takes_images=features.get("kind") == "image",
        options=features.get("options") or {},
    )
