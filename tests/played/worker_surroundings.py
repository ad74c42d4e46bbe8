"""A model of what surrounds a worker's decisions: database, planner and job threads."""

from hypothesis import event

from tensile_db.scheduler.sharing.member import Phase
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.turns import Turns
from tensile_db.worker import messages as m
from tensile_db.worker.held import JobState
from tensile_db.worker.state import WorkerState

MEMORY = 100


class Surroundings:
    """What a worker decides is done here at once, or put by until it is asked for."""

    alone = False
    max_jobs = 5

    def __init__(self) -> None:
        super().__init__()
        self.state = WorkerState(memory_nbytes=MEMORY, max_jobs=self.max_jobs, alone=self.alone)
        self.submitted: list[m.ClaimedJob] = []
        #: Least bytes that each job fits in.
        self.least: dict[m.JobId, int] = {}
        self.claims: list[m.Claim] = []
        self.plannings: list[m.MakePlans] = []
        #: Of those asked for, who is in line.
        self.candidates: set[m.JobId] = set()
        #: Better plans that are looked for, the newest last; plans asked for meanwhile call them off.
        self.improvements: list[m.Improve] = []
        #: Jobs by whose newest plans there may be better ones, which were not looked for yet.
        self.improvable: set[m.JobId] = set()
        #: The jobs whose lanes were chosen at once, as long as better ones are to be looked for.
        self.quick_lanes: set[m.JobId] = set()
        self.preparing: set[m.JobId] = set()
        self.ready: dict[m.JobId, int] = {}
        self.explaining: set[m.JobId] = set()
        #: The threads that have come to the device, and the plans that they have not taken up yet.
        self.turns = Turns(memory_nbytes=MEMORY, policy=SHARING_POLICIES["auto"])
        self.on_device: set[m.JobId] = set()
        #: Who measures on the device, or waits to.
        self.quiet_asked = 0
        self.offered: dict[m.JobId, m.StartJob | m.DistributePlan] = {}
        self.stopping: set[m.JobId] = set()
        #: Stopping, without device memory any more.
        self.saving: set[m.JobId] = set()
        #: What each thread was told last.
        self.told: dict[m.JobId, m.StopReason] = {}
        self.ended: set[m.JobId] = set()
        self.shut_down = False
        self.exited = False
        self.tell(m.Tick())

    def tell(self, message: m.Event) -> None:
        for instruction in self.state.handle(message):
            self.obey(instruction)
        self.state.validate()

    def obey(self, instruction: m.Instruction) -> None:
        match instruction:
            case m.Claim():
                assert not self.claims
                self.claims.append(instruction)
            case m.ReturnJob():
                self.submitted = [job for job in self.submitted if job.id != instruction.job]
                self.ended.add(instruction.job)
            case m.Prepare():
                self.preparing.add(instruction.job)
            case m.MakePlans():
                assert not self.plannings
                assert self.offered.keys() <= self.stopping, "planned before the last plans were taken up"
                asked = [job for job, _ in instruction.reasons]
                self.candidates = self.ready.keys() & set(asked)
                if not instruction.trial:
                    line = sorted(self.ready.keys() - self.stopping, key=self.rank)
                    chosen = [job for job in asked if job in self.ready]
                    assert chosen == line[: len(chosen)], "someone was passed over"
                    running = self.on_device - self.stopping
                    assert set(asked) - set(chosen) == running, "plans are not made for all together"
                self.plannings.append(instruction)
            case m.Improve():
                assert not self.plannings, "improved while others wait"
                assert not self.offered.keys() - self.stopping, "improved before the last plans were taken up"
                assert set(instruction.jobs) <= self.on_device - self.stopping
                are_there = self.quick_lanes <= self.on_device - self.stopping
                if len(instruction.jobs) > 1:
                    assert set(instruction.jobs) == self.quick_lanes, (
                        "looked for where nothing is to be gained"
                    )
                    self.quick_lanes = set()
                else:
                    assert not (self.quick_lanes and are_there), "plans improved before their lanes"
                    assert set(instruction.jobs) <= self.improvable, (
                        "looked for where nothing is to be gained"
                    )
                    self.improvable -= set(instruction.jobs)
                self.improvements.append(instruction)
            case m.Explain():
                self.preparing.discard(instruction.job)
                self.explaining.add(instruction.job)
            case m.StartJob():
                del self.ready[instruction.job]
                self.turns.come_in(instruction.job)
                self.on_device.add(instruction.job)
                self.offered[instruction.job] = instruction
            case m.DistributePlan():
                assert instruction.job not in self.offered
                self.offered[instruction.job] = instruction
                # A thread that waits for a turn looks up; one that approaches goes back in its own time.
                self.turns.withdraw(instruction.job)
            case m.BeginStage():
                assert instruction.job not in self.state.shares
                self.preparing.add(instruction.job)
                event("a job prepares another graph")
            case m.HoldJob():
                assert instruction.job in self.ready
                event("a job waits")
            case m.StopJob():
                before = self.told.get(instruction.job)
                assert before in (None, m.StopReason.PAUSED), "told to stop again for nothing new"
                assert before is not instruction.reason
                if before is not None:
                    event("a pause is overtaken")
                if instruction.reason is m.StopReason.MOVED:
                    assert instruction.job in self.ready, "whoever runs, or is about to, stays"
                    event("a job moves to another worker")
                self.told[instruction.job] = instruction.reason
                self.stopping.add(instruction.job)
            case m.RefuseJob():
                assert self.least[instruction.job] > MEMORY, "refused what would fit alone"
                self.stopping.add(instruction.job)
                event("a job is refused")
            case m.FailJob():
                self.stopping.add(instruction.job)
            case m.Exit():
                assert not self.threads()
                self.exited = True

    def rank(self, job: m.JobId) -> tuple[bool, int, int]:
        return (not self.serves(job), -self.ready[job], job)

    def serves(self, job: m.JobId) -> bool:
        return self.state.jobs[job].claimed.serves

    def threads(self) -> list[m.JobId]:
        places = (self.preparing, self.ready, self.explaining, self.on_device, self.saving)
        return sorted({job for place in places for job in place} - self.ended)

    def leave_device(self, job: m.JobId) -> None:
        if job in self.on_device:
            # Its thread waits for that.
            if not self.turns.depart(job):
                self.quiet_asked -= 1
                self.turns.end_quiet()
                assert self.turns.depart(job)
            self.on_device.discard(job)
        self.turns.leave(job)

    def can_end_stage(self) -> list[m.JobId]:
        """Return who runs, or has been told to stop meanwhile; a plan may have come that is not taken up."""
        states = (JobState.RUNNING, JobState.STOPPING)
        return [job for job in sorted(self.on_device) if self.state.jobs[job].state in states]

    def end_stage(self, job: m.JobId) -> None:
        """Have a thread leave the device, to go on with another graph."""
        self.leave_device(job)
        self.offered.pop(job, None)
        if job in self.stopping:
            event("a job is told to stop where its stage ends")
            self.saving.add(job)
        self.tell(m.StageEnded(job=job))
        assert job not in self.state.shares

    def in_retreat(self) -> list[m.JobId]:
        """Return who gave up its approach, and must tell when its state is gone."""
        return [
            job
            for job in sorted(self.on_device)
            if self.turns.phase_of(job) is Phase.APPROACHING and not self.turns.asks(job)
        ]

    def in_transit(self) -> list[m.JobId]:
        """Return whose state goes."""
        leaving = [job for job in self.on_device if self.turns.phase_of(job) is Phase.LEAVING]
        return sorted([*self.in_retreat(), *leaving])

    def end(self, job: m.JobId) -> None:
        self.leave_device(job)
        for place in (self.preparing, self.explaining, self.stopping, self.saving):
            place.discard(job)
        self.told.pop(job, None)
        self.ready.pop(job, None)
        self.offered.pop(job, None)
        self.ended.add(job)
        self.tell(m.JobEnded(job=job))
