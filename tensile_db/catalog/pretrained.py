"""Pretrained weights, which trainings start from.  The caller owns the transaction."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from tensile_db.catalog import schema, tensors
from tensile_db.catalog.tensors import StoredTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedRow:
    """What is known of pretrained weights."""

    id: int
    name: str
    #: By timm's name.
    architecture: str
    #: Of the images that they are made for, in pixels.
    height: int
    width: int
    #: Of each channel: pixels of 0 to 255 become (value - mean) / scale.
    mean: Sequence[float]
    scale: Sequence[float]


def add(
    conn: Connection,
    *,
    name: str,
    architecture: str,
    size: tuple[int, int],
    mean: Sequence[float],
    scale: Sequence[float],
    nbytes: int,
    stored: Iterable[StoredTensor],
    replace: bool = False,
) -> int | None:
    """Write weights under a name of their own; return their id, or None where the name is taken.

    size: height and width.  replace: those of that name that are there go.
    Holds back others that write under the same name until the transaction ends.
    """
    table = schema.pretrained_weights
    conn.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"tensile weights {name}", 0))))
    if replace:
        conn.execute(delete(table).where(table.c.name == name))
    height, width = size
    added = conn.execute(
        insert(table)
        .values(
            name=name,
            architecture=architecture,
            height=height,
            width=width,
            mean=list(mean),
            scale=list(scale),
            nbytes=nbytes,
        )
        .on_conflict_do_nothing(index_elements=["name"])
        .returning(table.c.id)
    ).scalar_one_or_none()
    if added is None:
        return None
    tensors.write(conn, schema.pretrained_tensors, "weights_id", added, stored)
    return int(added)


def find(conn: Connection, weights: int) -> PretrainedRow | None:
    """Return what is known of weights, by their id."""
    c = schema.pretrained_weights.c
    query = select(*(c[field.name] for field in fields(PretrainedRow))).where(c.id == weights)
    row = conn.execute(query).one_or_none()
    return None if row is None else PretrainedRow(**row._asdict())


def read_weights(conn: Connection, weights: int) -> AbstractContextManager[Iterator[StoredTensor]]:
    """Give the tensors, by name."""
    return tensors.read(conn, schema.pretrained_tensors, "weights_id", weights)


def weight_shapes(conn: Connection, weights: int) -> dict[str, tuple[int, ...]]:
    """Return the tensors' shapes, by name; nothing where the weights are no more."""
    return tensors.shapes(conn, schema.pretrained_tensors, "weights_id", weights)
