"""A job as its worker's state machine (`state.py`) holds it.  Pure.

It passes through these states:

        +-------------------------------------+
        v                                     |
    preparing ---> ready ---> admitted ---> running ---> (ended)
        |            |            |            |            ^
        |            +------------+------------+--> stopping
        +---> explaining ---> (ended), or stopping          |
        +---------------------------------------------------+

    preparing   its thread reads rows and captures the graph, or searches; no device memory
    ready       graph known; in line for memory (priority first, then age)
    explaining  its thread is told what its plan would be; no device memory
    admitted    has a plan and a share of the device, and waits until the others have made room for it
    running     takes its turns; goes back to preparing for another stage, once its memory is freed
    stopping    told to stop, or done; holds its share until its thread is over or has freed its memory
    (ended)     forgotten; from every state, for a thread may fail at any time
"""

from dataclasses import dataclass
from enum import StrEnum

from tensile_db.worker.messages import ClaimedJob, JobId, Reason, StopReason


class JobState(StrEnum):
    """See the picture above."""

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
    #: As its row has it now.
    priority: int
    state: JobState = JobState.PREPARING
    #: What its row says about why it waits; empty while it does not.
    wait_reason: str = ""
    #: It has ended one stage, and prepares the next.
    between_stages: bool = False
    #: Why it was told to stop, where it was.
    stop_reason: StopReason | None = None

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.claimed.id

    def may_be_told(self, reason: StopReason) -> bool:
        """Whether this reason to stop is news: none was given, or what was begun may be cut short.

        Whoever is to pause saves a checkpoint in its own time; one that is cancelled need not, and a worker
        that shuts down waits less patiently for a database that is away.
        """
        if reason is StopReason.MOVED:
            # Whoever has come to run meanwhile is best off here.
            return self.state is JobState.READY
        if self.state is not JobState.STOPPING:
            return True
        return self.stop_reason is StopReason.PAUSED and reason is not StopReason.PAUSED

    @property
    def first_reason(self) -> Reason:
        """Why the job's first plan here is made."""
        return Reason.RESUME if self.claimed.resumes else Reason.COLD_START

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Place in line: those who serve first, then higher priority, then older."""
        return (not self.claimed.serves, -self.priority, self.claimed.id)

    @property
    def takes_a_place(self) -> bool:
        """Whether it is one of the jobs of which a worker has so many at most.

        Were all places taken by searches, none would be left for their trials; whoever serves must not wait.
        """
        return not self.claimed.searches and not self.claimed.serves
