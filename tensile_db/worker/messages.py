"""What the worker's state machine is told (events) and what it asks for (instructions).

Pure values: `state.handle(event) -> list[Instruction]`; the controller carries the instructions out and
tells of their results as events.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from tensile_db.scheduler.sharing.share import Share

JobId = NewType("JobId", int)
#: Counts the plannings of one worker's life; names the plans that came of it.
PlanningId = NewType("PlanningId", int)


class Reason(StrEnum):
    """Why a plan was made; stored in tensile.plans.reason."""

    COLD_START = "cold_start"
    RESUME = "resume"
    ARRIVAL = "arrival"
    DEPARTURE = "departure"
    DRIFT = "drift"
    #: Other models are asked for than before.
    USE = "use"
    #: A better one was found than the one that others had waited for.
    IMPROVEMENT = "improvement"


class StopReason(StrEnum):
    """Why a job's thread is told to stop at its next iteration's boundary."""

    #: By its owner: the job ends as cancelled.
    CANCELLED = "cancelled"
    #: By its owner: the job leaves a checkpoint and rests until it is resumed.
    PAUSED = "paused"
    #: The worker shuts down: the job leaves a checkpoint and goes back to the queue.
    SHUTDOWN = "shutdown"
    #: It waits in line, and would run elsewhere at once: the job goes back to the queue, for that worker.
    MOVED = "moved"
    #: Another attempt owns the job: it ends without a trace.
    LEASE_LOST = "lease_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """A job as the state machine sees it."""

    id: JobId
    #: When it was claimed.
    priority: int
    #: Only asks what would be: takes no device memory.
    explains: bool = False
    #: A search, which only begins other jobs: takes no device memory, and none of the worker's places.
    searches: bool = False
    #: Serves a model: takes none of the worker's places, and waits for no other job's end.
    serves: bool = False
    #: Has run before and goes on from a checkpoint.
    resumes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time to look for jobs, notified or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsClaimed:
    """The answer to Claim; empty when there was nothing to claim, or the database was away."""

    jobs: tuple[ClaimedJob, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPrepared:
    """A job's rows are read and its graph is known."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class PlansMade:
    """The answer to MakePlans: each job's share by its new plan.  Jobs left out keep plan and share."""

    planning: PlanningId
    shares: tuple[tuple[JobId, Share], ...]
    #: Jobs, of all that were planned, for which a better plan may be found while nobody waits.
    improvable: tuple[JobId, ...] = ()
    #: The lanes were chosen at once, too, and there may be better ones.
    quick_lanes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInfeasible:
    """The answer to MakePlans: no plans keep all its jobs within the device's memory together.

    For a single job, needed_nbytes is the least that it needs and budget_nbytes what it may have.
    """

    planning: PlanningId
    needed_nbytes: int
    budget_nbytes: int
    #: What else to try; "": nothing in particular.
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningFailed:
    """The answer to MakePlans: the planner broke, or a job asks for what no plan can be."""

    planning: PlanningId
    message: str
    #: What to ask for instead; None: it was a defect of ours.
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprovementMade:
    """The answer to Improve: shares by better plans.  Jobs left out keep plan and share."""

    planning: PlanningId
    shares: tuple[tuple[JobId, Share], ...]
    #: As of PlansMade.
    improvable: tuple[JobId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingBetter:
    """The answer to Improve: what is in force is as good as any that was found."""

    planning: PlanningId


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAdopted:
    """A job has taken up the plan of a planning, and holds no more than its new share."""

    job: JobId
    planning: PlanningId


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftDetected:
    """A job's op latencies have left those that its plan was made from (TENSILE section IV-E)."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class UseChanged:
    """A model is asked for that is not kept on the device, or one that is has not been for long."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAsked:
    """One job must stop: CANCELLED, PAUSED, MOVED or LEASE_LOST."""

    job: JobId
    reason: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class PrioritiesRead:
    """What jobs' rows say of their priorities now, changed or not."""

    priorities: tuple[tuple[JobId, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFreed:
    """A stopping job holds no device memory any more; its thread goes on, e.g. to save a checkpoint."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEnded:
    """A running job has given all its device memory back, and goes on with another graph.

    Answered by BeginStage, or StopJob.
    """

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """A job's thread is over, whatever the outcome, and its device memory is free."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownAsked:
    """The worker must stop."""


Event = (
    Tick
    | JobsClaimed
    | JobPrepared
    | PlansMade
    | PlanInfeasible
    | PlanningFailed
    | ImprovementMade
    | NothingBetter
    | PlanAdopted
    | DriftDetected
    | UseChanged
    | StopAsked
    | PrioritiesRead
    | MemoryFreed
    | StageEnded
    | JobEnded
    | ShutdownAsked
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Claim up to `limit` jobs; answered by JobsClaimed.

    only_serving: all places are taken, and only jobs that need none are to be claimed.
    """

    limit: int
    only_serving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnJob:
    """Give a claimed job back to the queue: the worker is stopping."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Start the job's thread: read, build, capture; answered by JobPrepared or JobEnded."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlans:
    """Plan these jobs together for the whole device; answered by PlansMade, PlanInfeasible or PlanningFailed.

    trial: only whether it can be done is asked, and the plans are not used.
    """

    planning: PlanningId
    reasons: tuple[tuple[JobId, Reason], ...]
    trial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Improve:
    """Look for something better than what is in force; answered by ImprovementMade, NothingBetter.

    May be answered after plans were asked for, or be left unanswered where a job is gone.
    """

    #: One: for a better plan of a running job within its memory.  All that run: for better lanes.
    jobs: tuple[JobId, ...]
    planning: PlanningId


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain:
    """Tell the job's thread what its plan would be, alone and among its neighbours; answered by JobEnded."""

    job: JobId
    neighbours: tuple[JobId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob:
    """Let the job run by its plan of that planning, within its share; answered by PlanAdopted, JobEnded."""

    job: JobId
    planning: PlanningId
    share: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributePlan:
    """Hand a running job its new plan; answered by PlanAdopted, or JobEnded."""

    job: JobId
    planning: PlanningId
    share: Share


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginStage:
    """Let the job prepare its next graph: no plan is in force; answered by JobPrepared or JobEnded."""

    job: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldJob:
    """Let the job's row say why it waits."""

    job: JobId
    wait_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopJob:
    """Tell the job's thread to stop at its next boundary; answered by JobEnded.

    Told twice where it was to pause and something else came up meanwhile.
    """

    job: JobId
    reason: StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseJob:
    """Tell the waiting job's thread that it fits no plan; answered by JobEnded."""

    job: JobId
    needed_nbytes: int
    budget_nbytes: int
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailJob:
    """Tell the waiting job's thread that planning it failed; answered by JobEnded."""

    job: JobId
    message: str
    #: What to ask for instead; None: it was a defect of ours.
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """Nothing is left to do: leave the main loop."""


Instruction = (
    Claim
    | ReturnJob
    | Prepare
    | MakePlans
    | Improve
    | Explain
    | StartJob
    | DistributePlan
    | BeginStage
    | HoldJob
    | StopJob
    | RefuseJob
    | FailJob
    | Exit
)


def refusal_of(job: JobId, answer: PlanInfeasible | PlanningFailed) -> RefuseJob | FailJob:
    """Return what a job is told for which alone no plan was made."""
    match answer:
        case PlanInfeasible():
            return RefuseJob(
                job=job,
                needed_nbytes=answer.needed_nbytes,
                budget_nbytes=answer.budget_nbytes,
                hint=answer.hint,
            )
        case PlanningFailed():
            return FailJob(job=job, message=answer.message, hint=answer.hint)
