"""What the owners of a worker's jobs ask of them, as events for the state machine.

They stand in the jobs' rows, and are told again and again until the state machine has acted on them.
"""

from tensile_db.catalog.jobs import Asked
from tensile_db.worker.messages import Event, JobId, StopAsked, StopReason


def events_of(asked: Asked) -> list[Event]:
    """Return an event for each wish."""
    return [
        *(StopAsked(job=JobId(job), reason=StopReason.CANCELLED) for job in asked.cancel),
        *(StopAsked(job=JobId(job), reason=StopReason.PAUSED) for job in asked.pause),
    ]
