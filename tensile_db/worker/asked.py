"""What the owners of a worker's jobs ask of them, as events for the state machine.

It stands in the jobs' rows and is told again and again, so that an event that was lost or came too early does
no harm.
"""

import logging

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import leases
from tensile_db.catalog.leases import Asked
from tensile_db.worker.messages import Event, JobId, PrioritiesRead, StopAsked, StopReason

log = logging.getLogger(__name__)


def events_of(asked: Asked) -> list[Event]:
    """Return an event for each wish, and one for all priorities, where there are jobs."""
    priorities = tuple((JobId(job), priority) for job, priority in asked.priorities)
    return [
        *([PrioritiesRead(priorities=priorities)] if priorities else []),
        *(StopAsked(job=JobId(job), reason=StopReason.CANCELLED) for job in asked.cancel),
        *(StopAsked(job=JobId(job), reason=StopReason.PAUSED) for job in asked.pause),
    ]


def look_for_requests(engine: Engine, worker: int) -> list[Event]:
    """Return what is asked of the worker's jobs, as events; none where the database is away.

    What nobody asks for but the catalog knows is asked for on the way, of other workers' jobs, too: they hear
    of it.
    """
    try:
        with engine.begin() as conn:
            abandoned = leases.cancel_abandoned(conn)
            over_quota = leases.pause_over_quota(conn)
            asked = leases.asked(conn, worker=worker)
    except DBAPIError as error:
        log.warning("what is asked of jobs could not be looked for: %s", error.orig)
        return []
    if abandoned:
        log.info("%s jobs are to stop: their sessions are gone", abandoned)
    if over_quota:
        log.info("%s jobs are to rest: their roles have used up their device time", over_quota)
    return events_of(asked)
