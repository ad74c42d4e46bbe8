"""A job as its worker's state machine holds it.  Pure."""

from dataclasses import dataclass
from enum import StrEnum

from tensile_db.worker.messages import ClaimedJob, JobId, PlanningId


class JobState(StrEnum):
    """See the picture in `state.py`."""

    PREPARING = "preparing"
    READY = "ready"
    EXPLAINING = "explaining"
    ADMITTED = "admitted"
    RUNNING = "running"
    STOPPING = "stopping"


@dataclass(slots=True, kw_only=True)
class HeldJob:
    """A job of this worker; changed only by WorkerState."""

    claimed: ClaimedJob
    state: JobState = JobState.PREPARING
    #: What its row says about why it waits; empty while it does not.
    wait_reason: str = ""

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.claimed.id

    @property
    def rank(self) -> tuple[int, int]:
        """Place in line: higher priority first, then older."""
        return (-self.claimed.priority, self.claimed.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """A question put to the planner."""

    id: PlanningId
    candidates: tuple[JobId, ...]
    running: tuple[JobId, ...]
    #: Asks only whether the one candidate would fit alone.
    trial: bool
