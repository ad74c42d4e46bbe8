"""A worker's state machine that tests tell events, and what they expect of it."""

from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.messages import (
    Claim,
    ClaimedJob,
    DistributePlan,
    Event,
    Instruction,
    JobId,
    JobPrepared,
    JobsClaimed,
    MakePlans,
    PlanAdopted,
    PlanInfeasible,
    PlanningId,
    PlansMade,
    Reason,
    StartJob,
    Tick,
)
from tensile_db.worker.state import WorkerState

A, B, C = JobId(1), JobId(2), JobId(3)


class Worker:
    """A state whose invariants are checked after every event."""

    def __init__(self, memory_nbytes: int = 100, max_jobs: int = 8, *, alone: bool = False) -> None:
        self.state = WorkerState(memory_nbytes=memory_nbytes, max_jobs=max_jobs, alone=alone)
        self.claims: list[Claim] = []
        self.tell(Tick())

    def tell(self, event: Event) -> list[Instruction]:
        """Return what is to be done; claims, which any event may bring along, are kept apart."""
        instructions = self.state.handle(event)
        self.state.validate()
        self.claims += [instruction for instruction in instructions if isinstance(instruction, Claim)]
        return [instruction for instruction in instructions if not isinstance(instruction, Claim)]

    def claim(self, *jobs: ClaimedJob) -> list[Instruction]:
        return self.tell(JobsClaimed(jobs=jobs))

    def plans(
        self,
        planning: int,
        *,
        improvable: tuple[JobId, ...] = (),
        quick_lanes: bool = False,
        **budgets: int,
    ) -> list[Instruction]:
        """Each job has a lane of its own, and keeps all that it has between turns."""
        shares = tuple((JobId("_ABC".index(name)), share(name, nbytes)) for name, nbytes in budgets.items())
        made = PlansMade(
            planning=PlanningId(planning), shares=shares, improvable=improvable, quick_lanes=quick_lanes
        )
        return self.tell(made)

    def adopted(self, job: JobId, planning: int) -> list[Instruction]:
        return self.tell(PlanAdopted(job=job, planning=PlanningId(planning)))

    def infeasible(self, planning: int, needed: int = 120) -> list[Instruction]:
        return self.tell(
            PlanInfeasible(planning=PlanningId(planning), needed_nbytes=needed, budget_nbytes=100)
        )

    def ready(self, job: JobId, priority: int = 0) -> list[Instruction]:
        self.claim(ClaimedJob(id=job, priority=priority))
        return self.tell(JobPrepared(job=job))


def share(name: str, nbytes: int) -> Share:
    return Share(lane="_ABC".index(name), resident_nbytes=nbytes, ephemeral_nbytes=0)


def start(name: str, planning: int, nbytes: int) -> StartJob:
    return StartJob(job=JobId("_ABC".index(name)), planning=PlanningId(planning), share=share(name, nbytes))


def hand(name: str, planning: int, nbytes: int) -> DistributePlan:
    return DistributePlan(
        job=JobId("_ABC".index(name)), planning=PlanningId(planning), share=share(name, nbytes)
    )


def asks(planning: int, *reasons: tuple[JobId, Reason], trial: bool = False) -> MakePlans:
    return MakePlans(planning=PlanningId(planning), reasons=reasons, trial=trial)
