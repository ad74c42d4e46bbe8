"""Pretrained weights, which trainings start from.  The caller owns the transaction."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy.exc import IntegrityError

from tensile_db.catalog import schema, tensors
from tensile_db.catalog.tensors import StoredTensor
from tensile_db.errors import WrongState


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
) -> int:
    """Write weights under a name of their own; return their id.

    size: height and width.  replace: those of that name that are there go; else raises WrongState.
    """
    table = schema.pretrained_weights
    if replace:
        conn.execute(delete(table).where(table.c.name == name))
    height, width = size
    try:
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
            .returning(table.c.id)
        ).scalar_one()
    except IntegrityError as error:
        raise WrongState(
            f'pretrained weights "{name}" are there already',
            hint="Choose another name with --name, or take their place with --replace.",
        ) from error
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
