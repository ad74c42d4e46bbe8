"""Tensors as rows of at most 16 MiB each: of models, checkpoints and pretrained weights.

The caller owns the transaction.

A value is a C-contiguous array of bytes with a dtype's name and a shape; what the elements mean is the
worker's business.
"""

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import sql
from sqlalchemy import Connection, Table, select

from tensile_db.catalog.many_rows import driver_of, identifier_of, insert_large_rows
from tensile_db.catalog.schema import PART_NBYTES

#: Of what is read: name, part, dtype, shape, data.
_TYPES = ("text", "int4", "text", "int8[]", "bytea")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A named tensor's bytes, little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


def write(
    conn: Connection, table: Table, owner_column: str, owner: int, tensors: Iterable[StoredTensor]
) -> None:
    """Append the parts of tensors that belong to a model or checkpoint."""
    insert_large_rows(
        conn,
        table,
        (owner_column, "name", "part", "dtype", "shape", "data"),
        (
            (owner, tensor.name, part, tensor.dtype, list(tensor.shape), chunk)
            for tensor in tensors
            for part, chunk in enumerate(_parts(tensor.data))
        ),
    )


@contextmanager
def read(conn: Connection, table: Table, owner_column: str, owner: int) -> Iterator[Iterator[StoredTensor]]:
    """Give the tensors of a model or checkpoint by name; holds one and a row at a time.

    In COPY's binary format: as text a byte is two, and the worker would spend several times as long on them.
    Who leaves before the last one has the copy cancelled, and the transaction with it: else its rollback
    would wait for ever.
    """
    with closing(_read(conn, table, owner_column, owner)) as stored:
        yield stored


def shapes(conn: Connection, table: Table, owner_column: str, owner: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors of a model or the like, by name."""
    c = table.c
    # Each part tells the shape of the whole.
    query = select(c.name, c.shape).where(c[owner_column] == owner, c.part == 0)
    return {name: tuple(shape) for name, shape in conn.execute(query).all()}


def _read(
    conn: Connection, table: Table, owner_column: str, owner: int
) -> Generator[StoredTensor, None, None]:
    query = sql.SQL(
        "COPY (SELECT name, part, dtype, shape, data FROM {table} WHERE {owner_column} = {owner}"
        " ORDER BY name, part) TO STDOUT (FORMAT binary)"
    ).format(
        table=identifier_of(table), owner_column=sql.Identifier(owner_column), owner=sql.Literal(int(owner))
    )
    with driver_of(conn).cursor() as cursor, cursor.copy(query) as copy:
        copy.set_types(_TYPES)
        for (name, dtype, shape), parts in groupby(copy.rows(), key=lambda row: (row[0], row[2], row[3])):
            data = bytearray().join(_in_order(parts))
            yield StoredTensor(
                name=name, dtype=dtype, shape=tuple(shape), data=np.frombuffer(data, dtype=np.uint8)
            )


def _parts(data: NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield one part at least, so that an empty tensor is a row, too."""
    for begin in range(0, max(data.nbytes, 1), PART_NBYTES):
        yield data[begin : begin + PART_NBYTES].tobytes()


def _in_order(parts: Iterable[tuple[Any, ...]]) -> Iterator[bytes]:
    for expected, row in enumerate(parts):
        assert row[1] == expected, f"part {expected} of {row[0]} is missing"
        yield row[4]
