"""Pinning a version of a model, which is its default then, whatever is trained later.

Runs inside PostgreSQL, as the caller.  tensile.set_pinned, which does it, checks by itself what the caller
may.
"""

from tensile_db.errors import InvalidRequest
from tensile_db.udf.control import Arguments
from tensile_db.udf.models import model_of
from tensile_db.udf.session import Session


def pin_model(session: Session, arguments: Arguments) -> bool:
    """Make a version of a model the default; false where it is pinned already.

    Raises UndefinedModel, AmbiguousTarget; InvalidRequest for NULL; Forbidden as another role; 40001 where
    another version was pinned since the transaction's snapshot.
    """
    if arguments["version"] is None:
        raise InvalidRequest(
            "the version is NULL", hint="tensile_unpin_model makes the newest version the default again."
        )
    return _set_pinned(session, arguments["model"], arguments["version"])


def unpin_model(session: Session, arguments: Arguments) -> bool:
    """Make the newest version of a model the default again; false where none is pinned.

    Raises UndefinedModel, AmbiguousTarget; InvalidRequest for NULL; Forbidden as another role.
    """
    return _set_pinned(session, arguments["model"], None)


def _set_pinned(session: Session, name: str | None, version: int | None) -> bool:
    session.require_own_identity("change a model's default version", hint="Do it outside of that.")
    model = model_of(session, name, version)
    changed: bool = session.value(
        "SELECT tensile.set_pinned(tensile.sign(), {owner}, {name}, {version})",
        owner=("oid", model["owned_by"]),
        name=("text", model["name"]),
        version=("integer", version),
    )
    return changed
