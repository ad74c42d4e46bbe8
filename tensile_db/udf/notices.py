"""What whoever trains may not expect of a request, told before it is waited for.

Runs inside PostgreSQL, as the caller.
"""

from collections.abc import Sequence
from typing import Any

from tensile_db.udf.initial_model import InitialModel
from tensile_db.udf.session import Session
from tensile_db.udf.source import Column, Source

#: Columns that a sentence names.
_MOST_NAMED = 10


def tell_of_choice(
    session: Session, source: Source, features: tuple[Column, ...], reserved: tuple[Column, ...]
) -> None:
    """Tell what was chosen as features that nobody named, where there are other columns.

    reserved: what else is read and never a feature.
    """
    left = [c for c in source.columns if c not in features and c not in reserved and not c.key]
    if not left:
        return
    said = f"features are {_listed(features)}, and not {_listed(left)}"
    if features[0].family == "number" and any(column.family in ("text", "time") for column in left):
        said += "; texts and times can be, where features names all columns to learn from"
    session.notice(said)


def tell_of_name(session: Session, model: str, target: Column) -> None:
    """Tell that a model's name, which nobody chose, is that of one that predicts something else."""
    default = _default_version(session, model)
    if default is not None and default["target"] not in (None, target.name):
        session.notice(
            f'the model "{model}" predicts "{default["target"]}" so far, and its next version will predict'
            f" \"{target.name}\"; model => '...' keeps them apart"
        )


def tell_of_pinned(session: Session, model: str) -> None:
    """Tell that predictions will not go on with what is trained, for another version is pinned."""
    default = _default_version(session, model)
    if default is not None and default["pinned"]:
        session.notice(
            f'version {default["version"]} of the model "{model}" is pinned and stays its default;'
            " tensile_pin_model and tensile_unpin_model change that"
        )


def _default_version(session: Session, model: str) -> dict[str, Any] | None:
    return session.row(
        "SELECT m.version, m.target, m.pinned FROM tensile.models m"
        " JOIN pg_catalog.pg_roles r ON r.oid = m.owned_by"
        " WHERE m.name = {name} AND r.rolname = current_user"
        " ORDER BY m.pinned DESC, m.version DESC LIMIT 1",
        name=("text", model),
    )


def tell_of_rows(session: Session, initial: InitialModel, source: Source) -> None:
    """Tell that rows held out of a table may be some that the model to start from has learned from."""
    if initial.source_oid == source.oid:
        session.notice(
            f'rows held out may be some that the model "{initial.name}" has learned from in this table, and'
            ' metrics of them too good; the option "held_out" names a column that tells which are'
        )


def _listed(columns: Sequence[Column]) -> str:
    names = ", ".join(f'"{column.name}"' for column in columns[:_MOST_NAMED])
    return names + (", ..." if len(columns) > _MOST_NAMED else "")
