"""Trained models and their weights.  The caller owns the transaction."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, column, func, insert, select, table

from tensile_db.catalog import schema, tensors
from tensile_db.catalog.tensors import StoredTensor
from tensile_db.errors import NEAREST, AmbiguousTarget, UndefinedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """A model, without its weights."""

    id: int
    name: str
    version: int
    owner: str
    architecture: str
    task: str
    #: Labels in the order of the outputs; None for a number.
    classes: Sequence[Any] | None
    #: Of a number, as it was kept; None for classes, and for models that learned their target as it is.
    target_scaling: Mapping[str, Any] | None
    features: Mapping[str, Any]
    target: str | None


_COLUMNS = tuple(schema.models.c[field.name] for field in fields(ModelRow))
_ROLES = table("pg_roles", column("oid"), column("rolname"), schema="pg_catalog")


def add(
    conn: Connection,
    *,
    name: str,
    owned_by: int,
    owner: str,
    job: int,
    architecture: str,
    task: str,
    classes: Sequence[Any] | None,
    target_scaling: Mapping[str, Any] | None,
    features: Mapping[str, Any],
    target: str | None,
    parameter_nbytes: int,
    metrics: Mapping[str, Any],
    weights: Iterable[StoredTensor],
) -> tuple[int, int]:
    """Write a model as the next version of its name; return its id and version.

    A version that was dropped does not come again while the job that made it is in tensile.jobs.
    Holds back others that save under the same name until the transaction ends.
    """
    models, jobs = schema.models.c, schema.jobs.c
    conn.execute(
        select(func.pg_advisory_xact_lock(func.hashtextextended(f"tensile model {owned_by} {name}", 0)))
    )
    kept = select(func.max(models.version)).where(models.owned_by == owned_by, models.name == name)
    made = select(func.max(jobs.model_version)).where(
        jobs.submitted_by == owned_by, jobs.model == name, jobs.kind == "train", jobs.state == "succeeded"
    )
    newest = func.greatest(kept.scalar_subquery(), made.scalar_subquery())
    version = int(conn.execute(select(func.coalesce(newest, 0))).scalar_one()) + 1
    model = conn.execute(
        insert(schema.models)
        .values(
            name=name,
            version=version,
            owned_by=owned_by,
            owner=owner,
            job_id=job,
            architecture=architecture,
            task=task,
            classes=None if classes is None else list(classes),
            target_scaling=None if target_scaling is None else dict(target_scaling),
            features=dict(features),
            target=target,
            parameter_nbytes=parameter_nbytes,
            metrics=dict(metrics),
        )
        .returning(models.id)
    ).scalar_one()
    tensors.write(conn, schema.model_weights, "model_id", model, weights)
    return int(model), version


def find(conn: Connection, model: int) -> ModelRow | None:
    """Return a model by its id."""
    c = schema.models.c
    row = conn.execute(select(*_COLUMNS).where(c.id == model)).one_or_none()
    return None if row is None else _row(row)


def find_by_name(conn: Connection, name: str, version: int | None = None) -> ModelRow:
    """Return a model that the connected role may see: its own, or the only owner's.

    Without a version it is the pinned one, else the newest, as udf/models.py has it within the server.
    Raises UndefinedModel, AmbiguousTarget.
    """
    c, r = schema.models.c, _ROLES.c
    query = (
        select(
            *_COLUMNS,
            func.coalesce(r.rolname, c.owner).label("owner_now"),
            (r.rolname == func.current_user()).label("is_own"),
        )
        .select_from(schema.models.outerjoin(_ROLES, r.oid == c.owned_by))
        .where(c.name == name)
        .order_by(c.pinned.desc(), c.version.desc())
    )
    rows = conn.execute(query).all()
    rows = [row for row in rows if row.is_own] or rows
    if not rows:
        names = conn.execute(select(c.name).distinct()).scalars().all()
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=NEAREST)
        raise UndefinedModel(
            f'no model "{name}"',
            hint=f'Did you mean "{nearest[0]}"?' if nearest else "tensile_models() lists yours.",
        )
    if len(owners := sorted({row.owner_now for row in rows})) > 1:
        raise AmbiguousTarget(
            f'several owners have a model "{name}": {", ".join(owners)}', hint="Connect as one of them."
        )
    fitting = [row for row in rows if version in (None, row.version)]
    if not fitting:
        versions = ", ".join(map(str, sorted(row.version for row in rows)))
        raise UndefinedModel(f'model "{name}" has no version {version}', hint=f"It has: {versions}.")
    return _row(fitting[0])


def read_weights(conn: Connection, model: int) -> AbstractContextManager[Iterator[StoredTensor]]:
    """Give a model's weights, by name."""
    return tensors.read(conn, schema.model_weights, "model_id", model)


def weight_shapes(conn: Connection, model: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's weights, by name; nothing where the model is no more."""
    return tensors.shapes(conn, schema.model_weights, "model_id", model)


def _row(found: Any) -> ModelRow:
    return ModelRow(**{each.name: getattr(found, each.name) for each in _COLUMNS})
