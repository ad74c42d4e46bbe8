"""Tensors as rows of at most 16 MiB each: of models and of checkpoints.  The caller owns the transaction.

A value is a C-contiguous array of bytes with a dtype's name and a shape; what the elements mean is the
worker's business.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

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
    query = query.order_by(c.name, c.part).execution_options(stream_results=True, max_row_buffer=_FETCH)
    with conn.execute(query) as rows:
        for (name, dtype, shape), parts in groupby(rows, key=lambda row: (row.name, row.dtype, row.shape)):
            data = b"".join(_in_order(parts))
            # A copy, for what comes from the driver is read-only.
            yield StoredTensor(
                name=name, dtype=dtype, shape=tuple(shape), data=np.frombuffer(data, dtype=np.uint8).copy()
            )


def _parts(data: NDArray[np.uint8]) -> Iterator[bytes]:
    """Yield one part at least, so that an empty tensor is a row, too."""
    for begin in range(0, max(data.nbytes, 1), PART_NBYTES):
        yield data[begin : begin + PART_NBYTES].tobytes()


def _in_order(parts: Iterable[Any]) -> Iterator[bytes]:
    for expected, row in enumerate(parts):
        assert row.part == expected, f"part {expected} of {row.name} is missing"
        yield row.data
