"""Tensors as rows of at most 16 MiB each: of models and of checkpoints.  The caller owns the transaction.

A value is a C-contiguous array of bytes with a dtype's name and a shape; what the elements mean is the
worker's business.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Table, select

from tensile_db.catalog.many_rows import insert_large_rows
from tensile_db.catalog.schema import PART_NBYTES

#: Rows fetched at a time: with parts of 16 MiB, 64 MiB.
_FETCH = 4


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


def read(conn: Connection, table: Table, owner_column: str, owner: int) -> Iterator[StoredTensor]:
    """Yield the tensors of a model or checkpoint by name; holds one and 64 MiB of rows."""
    c = table.c
    query = select(c.name, c.part, c.dtype, c.shape, c.data).where(c[owner_column] == owner)
    rows = conn.execution_options(stream_results=True, max_row_buffer=_FETCH).execute(
        query.order_by(c.name, c.part)
    )
    name: str | None = None
    parts: list[bytes] = []
    dtype, shape = "", ()
    for row in rows:
        if row.name != name and name is not None:
            yield _joined(name, dtype, shape, parts)
            parts = []
        assert row.part == len(parts), f"part {len(parts)} of {row.name} is missing"
        name, dtype, shape = row.name, row.dtype, tuple(row.shape)
        parts.append(row.data)
    if name is not None:
        yield _joined(name, dtype, shape, parts)


def _parts(data: NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield one part at least, so that an empty tensor is a row, too."""
    for begin in range(0, max(data.nbytes, 1), PART_NBYTES):
        yield data[begin : begin + PART_NBYTES].tobytes()


def _joined(name: str, dtype: str, shape: tuple[int, ...], parts: list[bytes]) -> StoredTensor:
    # A copy, for a part that comes from the driver is read-only.
    data = np.frombuffer(b"".join(parts), dtype=np.uint8).copy()
    return StoredTensor(name=name, dtype=dtype, shape=shape, data=data)
