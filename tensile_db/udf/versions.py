"""Which version of a model is meant where none is said: the pinned one, else the newest.

Runs inside PostgreSQL, as the caller.
"""

from typing import Any

from tensile_db.errors import InvalidRequest
from tensile_db.udf.models import model_of
from tensile_db.udf.session import Session


def pin_model(session: Session, arguments: dict[str, Any]) -> bool:
    """Make a version of a model the default; false where it is pinned already.

    Raises UndefinedModel, AmbiguousTarget; InvalidRequest for NULL; Forbidden as another role.
    """
    if arguments["version"] is None:
        raise InvalidRequest(
            "the version is NULL", hint="tensile_unpin_model makes the newest version the default again."
        )
    return _set_pinned(session, arguments["model"], arguments["version"])


def unpin_model(session: Session, arguments: dict[str, Any]) -> bool:
    """Make the newest version of a model the default again; false where none is pinned.

    Raises UndefinedModel, AmbiguousTarget; InvalidRequest for NULL; Forbidden as another role.
    """
    return _set_pinned(session, arguments["model"], None)


def _set_pinned(session: Session, name: str | None, version: int | None) -> bool:
    session.require_own_identity("pin a model's version", hint="Do it outside of that.")
    model = model_of(session, name, version)
    changed: bool = session.value(
        "SELECT tensile.set_pinned(tensile.sign(), {owner}, {name}, {version})",
        owner=("oid", model["owned_by"]),
        name=("text", model["name"]),
        version=("integer", version),
    )
    return changed
