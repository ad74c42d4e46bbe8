"""What predict jobs made, until tensile_predict has returned it.  The caller owns the transaction."""

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, delete

from tensile_db.catalog import schema
from tensile_db.catalog.fence import Fence, hold
from tensile_db.catalog.many_rows import insert_rows


def write(
    conn: Connection,
    fence: Fence,
    rows: Iterable[tuple[int, str | None, str | None, float | None, Sequence[float] | None]],
) -> None:
    """Write (ordinal, row key, prediction, probability, that of each class) of rows.  Raises LostLease."""
    hold(conn, fence)
    insert_rows(
        conn,
        schema.predictions,
        ("job_id", "ordinal", "row_key", "prediction", "probability", "probabilities"),
        ("int8", "int8", "text", "text", "float8", "float8[]"),
        ((fence.job, *row) for row in rows),
    )


def remove(conn: Connection, fence: Fence) -> None:
    """Remove what an earlier attempt wrote.  Raises LostLease."""
    hold(conn, fence)
    conn.execute(delete(schema.predictions).where(schema.predictions.c.job_id == fence.job))
