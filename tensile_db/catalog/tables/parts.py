"""Tables of tensors: a row for each part of one.

Tensors lie in parts of at most 16 MiB: a field is limited to 1 GiB, and a backend holds a whole one.
"""

from typing import Any

from sqlalchemy import BigInteger, Column, ForeignKey, Integer, LargeBinary, PrimaryKeyConstraint, Table, Text
from sqlalchemy.dialects.postgresql import ARRAY

from tensile_db.catalog.tables.base import SCHEMA, metadata

#: The largest part of a tensor, in bytes.
PART_NBYTES = 16 * 2**20

NAMES_OF_WEIGHTS = "parameter/... or buffer/..., as the architecture names it."


def parts_of_tensors(table: str, *, of: str, owner: str, owners: str, names: str, comment: str) -> Table:
    """Return a table of tensors that belong to rows of another, and go with them.

    of: the column that says whose, of the table `owners`; owner, names, comment: comments on it, on the
    tensors' names and on the table.
    """
    columns: list[Column[Any]] = [
        Column(of, ForeignKey(f"{SCHEMA}.{owners}.id", ondelete="CASCADE"), comment=owner),
        Column("name", Text, comment=names),
        Column("part", Integer, comment="From 0."),
        Column("dtype", Text, nullable=False, comment="The elements."),
        Column("shape", ARRAY(BigInteger), nullable=False, comment="Of the whole tensor, in elements."),
        Column(
            "data", LargeBinary, nullable=False, comment="This part's bytes, little-endian, at most 16 MiB."
        ),
    ]
    return Table(table, metadata, *columns, PrimaryKeyConstraint(of, "name", "part"), comment=comment)
