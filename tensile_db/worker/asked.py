"""What the owners of a worker's jobs ask of them, as events for the state machine.

It stands in the jobs' rows and is told again and again, so that an event that was lost or came too early does
no harm.
"""

from tensile_db.catalog.jobs import Asked
from tensile_db.worker.messages import Event, JobId, PrioritiesRead, StopAsked, StopReason


def events_of(asked: Asked) -> list[Event]:
    """Return an event for each wish, and one for all priorities, where there are jobs."""
    priorities = tuple((JobId(job), priority) for job, priority in asked.priorities)
    return [
        *([PrioritiesRead(priorities=priorities)] if priorities else []),
        *(StopAsked(job=JobId(job), reason=StopReason.CANCELLED) for job in asked.cancel),
        *(StopAsked(job=JobId(job), reason=StopReason.PAUSED) for job in asked.pause),
    ]
