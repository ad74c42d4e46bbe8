"""Why jobs wait, as their rows say it.  Pure."""

from collections.abc import Iterable

from tensile_db.errors import format_nbytes
from tensile_db.scheduler.sharing.share import Share, needed_nbytes, without_recorded
from tensile_db.worker.messages import JobId


def for_memory(shares: Iterable[Share], memory_nbytes: int) -> str:
    """Of the first in line; shares: of those that hold memory."""
    held_nbytes = needed_nbytes(without_recorded(share) for share in shares)
    held = f"{format_nbytes(held_nbytes)} of {format_nbytes(memory_nbytes)}"
    return f"waits for device memory: other jobs hold {held}, too much beside it"


def for_the_end_of(job: JobId) -> str:
    """Of the first in line."""
    return f"waits for the end of job {job}: this worker runs one job at a time"


def behind(head: JobId) -> str:
    """Of all others; head: the first in line."""
    return f"waits behind job {head}, which is first in line"
