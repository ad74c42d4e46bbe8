"""What every catalog table shares: the metadata, the schema's name, and the types with a unit.

Sizes are bytes and durations nanoseconds, both bigint; instants are timestamptz.
"""

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, DateTime, ForeignKey, MetaData, text

SCHEMA = "tensile"

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key",
        "ck": "%(table_name)s_%(constraint_name)s_check",
        "ix": "%(table_name)s_%(column_0_N_name)s_idx",
    },
)

NOW = text("now()")


def instant(name: str, comment: str, *, nullable: bool = True, now: bool = False) -> Column[Any]:
    """Return a timestamptz column; `now` makes the transaction's time its default."""
    return Column(
        name,
        DateTime(timezone=True),
        nullable=nullable and not now,
        server_default=NOW if now else None,
        comment=comment,
    )


def count(name: str, comment: str, *, nullable: bool = True) -> Column[Any]:
    """Return a bigint column: a number of bytes, nanoseconds, rows or ops."""
    return Column(name, BigInteger, nullable=nullable, comment=comment)


def job_id(*, primary_key: bool = False) -> Column[Any]:
    """Return the column that ties a row to its job; the row goes when the job goes."""
    return Column(
        "job_id",
        ForeignKey(f"{SCHEMA}.jobs.id", ondelete="CASCADE"),
        primary_key=primary_key,
        nullable=False,
        comment="The job.",
    )


def one_of(column: str, *values: str) -> CheckConstraint:
    """Return the check that `column` holds one of the words."""
    words = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({words})", name=column)
