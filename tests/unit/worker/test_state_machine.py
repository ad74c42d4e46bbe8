"""The worker's decisions under every order of events and faults, against a model of what surrounds it."""

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensile_db.worker import messages as m
from tensile_db.worker.state import WorkerState
from tests.examples import examples

MEMORY = 100


class World(RuleBasedStateMachine):
    """Database, planner and job threads, each answering when a rule lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.state = WorkerState(memory_nbytes=MEMORY, max_jobs=5)
        self.submitted: list[m.ClaimedJob] = []
        #: Least bytes that each job fits in.
        self.least: dict[m.JobId, int] = {}
        self.claims: list[m.Claim] = []
        self.plannings: list[m.MakePlans] = []
        self.preparing: set[m.JobId] = set()
        self.ready: dict[m.JobId, int] = {}
        self.explaining: set[m.JobId] = set()
        #: What each thread on the device really may hold, and what it will hold when it adopts.
        self.holds: dict[m.JobId, int] = {}
        self.offered: dict[m.JobId, m.DistributePlan] = {}
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
                if not instruction.trial:
                    line = sorted(self.ready.keys() - self.stopping, key=lambda job: (-self.ready[job], job))
                    chosen = [job for job in asked if job in self.ready]
                    assert chosen == line[: len(chosen)], "someone was passed over"
                    running = set(self.holds) - self.stopping
                    assert set(asked) - set(chosen) == running, "plans are not made for all together"
                self.plannings.append(instruction)
            case m.Explain():
                self.preparing.discard(instruction.job)
                self.explaining.add(instruction.job)
            case m.StartJob():
                del self.ready[instruction.job]
                self.holds[instruction.job] = instruction.budget_nbytes
            case m.DistributePlan():
                assert instruction.job not in self.offered
                self.offered[instruction.job] = instruction
            case m.HoldJob():
                assert instruction.job in self.ready
                event("a job waits")
            case m.StopJob():
                before = self.told.get(instruction.job)
                assert before in (None, m.StopReason.PAUSED), "told to stop again for nothing new"
                assert before is not instruction.reason
                if before is not None:
                    event("a pause is overtaken")
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

    def threads(self) -> list[m.JobId]:
        places = (self.preparing, self.ready, self.explaining, self.holds, self.saving)
        return sorted({job for place in places for job in place} - self.ended)

    def end(self, job: m.JobId) -> None:
        for place in (self.preparing, self.explaining, self.stopping, self.saving):
            place.discard(job)
        self.told.pop(job, None)
        self.ready.pop(job, None)
        self.holds.pop(job, None)
        self.offered.pop(job, None)
        self.ended.add(job)
        self.tell(m.JobEnded(job=job))

    @rule(
        least=st.integers(1, 130), priority=st.integers(0, 1), explains=st.sampled_from([False, False, True])
    )
    def submit(self, least: int, priority: int, explains: bool) -> None:
        job = m.JobId(len(self.least) + 1)
        self.least[job] = least
        self.submitted.append(m.ClaimedJob(id=job, priority=priority, explains=explains))

    @rule()
    def tick(self) -> None:
        self.tell(m.Tick())

    @precondition(lambda self: self.claims)
    @rule()
    def answer_claim(self) -> None:
        limit = self.claims.pop().limit
        taken, self.submitted = tuple(self.submitted[:limit]), self.submitted[limit:]
        self.tell(m.JobsClaimed(jobs=taken))

    @precondition(lambda self: self.claims)
    @rule()
    def database_is_away(self) -> None:
        self.claims.pop()
        self.tell(m.JobsClaimed(jobs=()))

    @precondition(lambda self: self.preparing - self.stopping)
    @rule()
    def finish_preparing(self) -> None:
        job = min(self.preparing - self.stopping)
        held = self.state.jobs[job]
        if not held.claimed.explains:
            self.preparing.discard(job)
            self.ready[job] = held.priority
        self.tell(m.JobPrepared(job=job))

    @precondition(lambda self: self.plannings)
    @rule(share=st.integers(0, 100))
    def answer_planning(self, share: int) -> None:
        """Each job gets its least and a share of what is left over."""
        asked = self.plannings.pop()
        jobs = [job for job, _ in asked.reasons]
        needed = sum(self.least[job] for job in jobs)
        if needed > MEMORY:
            event("infeasible")
            self.tell(m.PlanInfeasible(planning=asked.planning, needed_nbytes=needed, budget_nbytes=MEMORY))
            return
        spare = (MEMORY - needed) * share // 100 // len(jobs)
        budgets = tuple((job, self.least[job] + spare) for job in jobs)
        self.tell(m.PlansMade(planning=asked.planning, budgets_nbytes=budgets))

    @precondition(lambda self: self.plannings)
    @rule()
    def planner_breaks(self) -> None:
        self.tell(m.PlanningFailed(planning=self.plannings.pop().planning, message="a defect"))

    @precondition(lambda self: self.offered)
    @rule(last=st.booleans())
    def adopt(self, last: bool) -> None:
        plan = self.offered.pop(max(self.offered) if last else min(self.offered))
        self.holds[plan.job] = plan.budget_nbytes
        self.tell(m.PlanAdopted(job=plan.job, planning=plan.planning))
        event("a plan is adopted")

    @precondition(lambda self: self.threads())
    @rule(data=st.data())
    def thread_ends(self, data: st.DataObject) -> None:
        """Done, failed or stopped: it is the same to the others, and may happen in any state."""
        self.end(data.draw(st.sampled_from(self.threads())))

    @precondition(lambda self: self.least)
    @rule(
        data=st.data(),
        reason=st.sampled_from([m.StopReason.CANCELLED, m.StopReason.LEASE_LOST, m.StopReason.PAUSED]),
    )
    def stop(self, data: st.DataObject, reason: m.StopReason) -> None:
        job = data.draw(st.sampled_from(sorted(self.least)))
        self.tell(m.StopAsked(job=job, reason=reason))

    @precondition(lambda self: self.least)
    @rule(data=st.data(), priority=st.integers(-1, 2))
    def set_priority(self, data: st.DataObject, priority: int) -> None:
        job = data.draw(st.sampled_from(sorted(self.least)))
        if job in self.ready:
            event("the line is ordered anew")
            self.ready[job] = priority
        self.tell(m.PrioritiesRead(priorities=((job, priority),)))

    @precondition(lambda self: self.holds.keys() & self.stopping)
    @rule(data=st.data())
    def free_memory(self, data: st.DataObject) -> None:
        """A paused job's thread has closed its memory and writes its checkpoint."""
        job = data.draw(st.sampled_from(sorted(self.holds.keys() & self.stopping)))
        del self.holds[job]
        self.offered.pop(job, None)
        self.saving.add(job)
        self.tell(m.MemoryFreed(job=job))
        assert self.state.ledger.reserved_for(job) == 0
        event("memory is freed early")

    @precondition(lambda self: self.stopping)
    @rule(data=st.data())
    def pause_is_taken_back(self, data: st.DataObject) -> None:
        """A job that stops goes back to the queue, and is claimed anew once its thread is over."""
        job = data.draw(st.sampled_from(sorted(self.stopping)))
        claimed = self.state.jobs[job].claimed
        self.end(job)
        self.ended.discard(job)
        self.submitted.append(m.ClaimedJob(id=job, priority=claimed.priority, resumes=True))
        event("a job comes again")

    @precondition(lambda self: self.holds)
    @rule(data=st.data())
    def drift(self, data: st.DataObject) -> None:
        self.tell(m.DriftDetected(job=data.draw(st.sampled_from(sorted(self.holds)))))

    @rule()
    @precondition(lambda self: len(self.ended) > 3)
    def shut_the_worker_down(self) -> None:
        self.shut_down = True
        self.tell(m.ShutdownAsked())

    @invariant()
    def threads_hold_no_more_than_there_is(self) -> None:
        held = 0
        for job, nbytes in self.holds.items():
            plan = self.offered.get(job)
            most = max(nbytes, plan.budget_nbytes if plan else 0)
            assert most <= self.state.ledger.reserved_for(job)
            held += most
        assert held <= MEMORY

    def teardown(self) -> None:
        """Without further faults, everything that can finish does, in bounded time."""
        for _ in range(40 * (len(self.least) + 1)):
            if self.claims:
                self.answer_claim()
            elif self.preparing - self.stopping:
                self.finish_preparing()
            elif self.plannings:
                self.answer_planning(share=50)
            elif self.offered:
                self.adopt(last=False)
            elif self.threads():
                done = sorted({*self.stopping, *self.explaining, *self.holds} & set(self.threads()))
                assert done, f"jobs {self.threads()} wait for nothing"
                self.end(done[0])
            elif self.submitted and not self.shut_down:
                self.tick()
        assert not self.threads()
        assert not self.submitted or self.shut_down
        assert self.state.ledger.reserved_nbytes == 0
        assert self.exited == self.shut_down


World.TestCase.settings = examples(300, stateful_step_count=40)
TestWorld = World.TestCase
