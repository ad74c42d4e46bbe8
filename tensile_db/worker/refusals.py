"""What becomes of a job that is too large for a device: another worker's may do, else it fails."""

from sqlalchemy import Connection

from tensile_db.catalog import jobs, placements
from tensile_db.catalog.fence import Fence
from tensile_db.errors import DoesNotFit, format_nbytes


def refuse(conn: Connection, fence: Fence, refusal: DoesNotFit, *, device_nbytes: int) -> bool:
    """Let go of a job for a worker with a larger device, or fail it; device_nbytes: of this one.

    Returns whether it goes on elsewhere.  Raises LostLease.
    """
    # Else it is its own limit that is too small, or what others have left it.
    is_too_large = refusal.needed_nbytes > device_nbytes
    if is_too_large and placements.pass_on(conn, fence, needed_nbytes=refusal.needed_nbytes):
        return True
    hint = refusal.hint
    largest_nbytes = placements.largest_memory(conn)
    if is_too_large and device_nbytes < (largest_nbytes or 0) < refusal.needed_nbytes:
        assert largest_nbytes is not None
        hint += f"  The largest device of a worker that is alive has {format_nbytes(largest_nbytes)}."
    jobs.fail(conn, fence, sqlstate=refusal.sqlstate, message=refusal.message, hint=hint)
    return False


def refuse_waiting(conn: Connection, fence: Fence, *, needed_nbytes: int) -> None:
    """Fail a job that has waited for a device with so much memory, and none is alive.  Raises LostLease."""
    largest_nbytes = placements.largest_memory(conn) or 0
    refusal = DoesNotFit(needed_nbytes=needed_nbytes, budget_nbytes=largest_nbytes)
    jobs.fail(conn, fence, sqlstate=refusal.sqlstate, message=refusal.message, hint=refusal.hint)
