"""What a worker takes from the queue and puts back into it, for its controller.

A database that is away costs a look, never the worker: there are no jobs then, until the next one.
"""

import logging
from collections.abc import Collection

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import jobs
from tensile_db.catalog.jobs import JobRow
from tensile_db.errors import KernelFailed, LostLease
from tensile_db.scheduler.plan import DeviceSpec

log = logging.getLogger(__name__)


class Claims:
    """One worker's claims; used by its controller's thread only."""

    def __init__(self, *, engine: Engine, worker: int, device: DeviceSpec, lease_s: float) -> None:
        self._engine = engine
        self._worker = worker
        self._device = device
        self._lease_s = lease_s

    def take(self, *, limit: int, held: Collection[int]) -> list[JobRow]:
        """Claim up to `limit` jobs and return them; held: jobs that are here already.

        Jobs that lost many workers are failed on the way.
        """
        try:
            with self._engine.begin() as conn:
                sound, poisonous = jobs.claim(
                    conn,
                    worker=self._worker,
                    device=self._device.name,
                    limit=limit,
                    lease_s=self._lease_s,
                    held=held,
                )
                for row in poisonous:
                    error = _lost_too_often(row)
                    jobs.fail(
                        conn, row.fence, sqlstate=error.sqlstate, message=error.message, hint=error.hint
                    )
        except DBAPIError as error:
            log.warning("no jobs could be claimed: %s", error.orig)
            return []
        for row in sound:
            log.info("job %s of %s is claimed, attempt %s", row.id, row.owner, row.attempt)
        return sound

    def give_back(self, row: JobRow) -> None:
        """Put a job back that was claimed and not begun."""
        try:
            with self._engine.begin() as conn:
                jobs.give_back(conn, row.fence)
        except (DBAPIError, LostLease) as error:
            # Its lease runs out, then.
            log.warning("job %s could not be given back: %s", row.id, error)


def _lost_too_often(row: JobRow) -> KernelFailed:
    return KernelFailed(
        f"{jobs.MAX_LOSSES} workers in a row were lost while they ran the job",
        hint="See the worker's log; the machine may lack memory for the job's rows or its tensors.",
    )
