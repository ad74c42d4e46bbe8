"""The pretrained weights that a training starts from: the option `pretrained`.

Runs inside PostgreSQL, as the caller.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from tensile_db.errors import NEAREST, AmbiguousTarget, InvalidRequest, UndefinedModel, format_value
from tensile_db.udf.session import Session

_LIST = "SELECT name, architecture FROM tensile.pretrained_weights lists them all."


def with_pretrained(
    session: Session, architecture: str, options: dict[str, Any], varying: Collection[str] = ()
) -> tuple[dict[str, Any], int | None]:
    """Return a training's options with the weights that are meant by name, and their id; None for none.

    options: as `check_options` gives them.  varying: what varies in a search.
    Raises UndefinedModel where there are no such weights, AmbiguousTarget where they could be several,
    InvalidRequest where they are another network's, or layers are to stay as they are without any.
    """
    asked = options.get("pretrained")
    if asked in (None, False):
        if options.get("freeze_backbone") and "start_from" not in options:
            raise InvalidRequest(
                'with "freeze_backbone" all layers but the last one stay as they are, and they have learned'
                " nothing yet",
                hint='Let them start from weights, by "pretrained" or "start_from", or leave it out.',
            )
        return options, None
    if "start_from" in options:
        raise InvalidRequest(
            'the options "start_from" and "pretrained" both say which weights a training starts from',
            hint="Leave one of them out.",
        )
    if "architecture" in varying:
        raise InvalidRequest(
            '"architecture" is that of the pretrained weights that the trials start from, and cannot vary',
            hint='Leave it out of space, or "pretrained" out of options.',
        )
    known = session.rows(
        "SELECT w.id, w.name, w.architecture, a.name IS NOT NULL AS fits FROM tensile.pretrained_weights w"
        " LEFT JOIN tensile.architectures a ON a.name = {name} AND a.resolves_to = w.architecture"
        " ORDER BY w.name",
        name=("text", architecture),
    )
    found = _only_one(known, architecture) if asked is True else _named(known, asked, architecture)
    return options | {"pretrained": found["name"]}, found["id"]


def _only_one(known: list[dict[str, Any]], architecture: str) -> Mapping[str, Any]:
    fitting = [each for each in known if each["fits"]]
    if not fitting:
        raise UndefinedModel(
            f'there are no pretrained weights of the architecture "{architecture}"',
            hint=f"An administrator brings some: tensile-db import-weights {architecture} FILE."
            + (f"  {_LIST}" if known else ""),
        )
    if len(fitting) > 1:
        names = ", ".join(f'"{format_value(each["name"])}"' for each in fitting)
        raise AmbiguousTarget(
            f'several pretrained weights are of the architecture "{architecture}": {names}',
            hint='Name one: "pretrained": "...".',
        )
    return fitting[0]


def _named(known: list[dict[str, Any]], name: str, architecture: str) -> Mapping[str, Any]:
    found = next((each for each in known if each["name"] == name), None)
    if found is None:
        nearest = difflib.get_close_matches(name, [each["name"] for each in known], n=1, cutoff=NEAREST)
        raise UndefinedModel(
            f'no pretrained weights "{format_value(name)}"',
            hint=f'Did you mean "{nearest[0]}"?' if nearest else _LIST,
        )
    if not found["fits"]:
        raise InvalidRequest(
            f'the pretrained weights "{format_value(name)}" are of the architecture'
            f' "{found["architecture"]}", and a network "{architecture}" cannot start from them',
            hint=f"Give '{found['architecture']}' as the architecture, or leave \"pretrained\" out.",
        )
    return found
