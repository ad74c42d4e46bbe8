"""What surrounds a worker, by rules: database, planner and job threads answer in any order."""

from dataclasses import replace

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tensile_db.scheduler.sharing.member import Phase
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.worker import messages as m
from tests.played.worker_surroundings import MEMORY, Surroundings


class World(Surroundings, RuleBasedStateMachine):
    """Database, planner and job threads, each answering when a rule lets it."""

    @rule(
        least=st.integers(1, 130),
        priority=st.integers(0, 1),
        kind=st.sampled_from(["", "", "explains", "searches", "serves"]),
    )
    def submit(self, least: int, priority: int, kind: str) -> None:
        job = m.JobId(len(self.least) + 1)
        self.least[job] = least
        self.submitted.append(m.ClaimedJob(id=job, priority=priority, **({kind: True} if kind else {})))

    @rule()
    def tick(self) -> None:
        self.tell(m.Tick())

    @precondition(lambda self: self.claims)
    @rule()
    def answer_claim(self) -> None:
        claim = self.claims.pop()
        claimable = [job for job in self.submitted if job.serves or not claim.only_serving]
        taken = tuple(claimable[: claim.limit])
        self.submitted = [job for job in self.submitted if job not in taken]
        if claim.only_serving and taken:
            event("all places are taken, and a model is served")
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
        if held.claimed.searches:
            event("searched")
            self.end(job)
            return
        if not held.claimed.explains:
            self.preparing.discard(job)
            self.ready[job] = held.priority
        self.tell(m.JobPrepared(job=job))

    @precondition(lambda self: self.plannings)
    @rule(
        lanes=st.integers(1, 3),
        stays=st.integers(0, 100),
        ahead=st.integers(0, 100),
        recorded=st.sampled_from([0, 10, 40]),
        quick=st.sampled_from([True, True, False]),
        keeps=st.booleans(),
        beside=st.booleans(),
    )
    def answer_planning(
        self,
        lanes: int,
        stays: int,
        ahead: int,
        recorded: int = 0,
        *,
        quick: bool = False,
        keeps: bool = False,
        beside: bool = False,
    ) -> None:
        """Each job gets its least, a part of which stays between turns, or is moved ahead of some jobs.

        What stays may be joined by what is replayed.
        """
        asked = self.plannings.pop()
        jobs = [job for job, _ in asked.reasons]
        shares = {
            job: Share(
                lane=job % lanes,
                resident_nbytes=self.least[job] * stays // 100,
                ephemeral_nbytes=self.least[job] - self.least[job] * stays // 100,
                recorded_nbytes=recorded,
            )
            if job % 3 == 0
            else Share(
                lane=job % lanes,
                resident_nbytes=0,
                ephemeral_nbytes=self.least[job],
                transit_nbytes=self.least[job] * ahead // 100,
            )
            for job in jobs
        }
        if needed_nbytes(shares.values()) > MEMORY:
            # States are moved ahead only where there is room.
            shares = {
                job: replace(share, transit_nbytes=0, recorded_nbytes=0) for job, share in shares.items()
            }
        if keeps:
            # Who runs goes on by its plan, if the others fit beside it.
            kept = {job: self.state.shares[job] for job in jobs if job in self.state.shares}
            if needed_nbytes((shares | kept).values()) <= MEMORY:
                event("plans are kept")
                shares |= kept
                if beside and len(kept) < len(jobs):
                    event("nobody looks at those that run")
                    shares = {job: share for job, share in shares.items() if job not in kept}
        needed = needed_nbytes(shares.values())
        if needed > MEMORY:
            event("infeasible")
            self.tell(m.PlanInfeasible(planning=asked.planning, needed_nbytes=needed, budget_nbytes=MEMORY))
            return
        improvable = tuple(job for job in jobs if quick)
        intact = all(job in (self.ready if job in self.candidates else self.on_device) for job in jobs)
        if intact and not asked.trial and not self.stopping & set(jobs):
            self.improvable = set(improvable)
            self.quick_lanes = set(jobs) if quick and len(jobs) > 1 else set()
        made = m.PlansMade(
            planning=asked.planning, shares=tuple(shares.items()), improvable=improvable, quick_lanes=quick
        )
        self.tell(made)

    @precondition(lambda self: self.improvements)
    @rule(more=st.integers(-20, 20), stays=st.integers(0, 100), lanes=st.integers(0, 2))
    def find_a_better_plan(self, more: int, stays: int, lanes: int) -> None:
        """It may divide what the jobs hold otherwise, or even need more than there is."""
        asked = self.improvements.pop(0)
        together = len(asked.jobs) > 1
        shares = {}
        for job in asked.jobs:
            former = self.state.shares.get(job)
            nbytes = max(1, self.least[job] + more)
            same = 0 if former is None else former.lane
            shares[job] = Share(
                lane=job % lanes if together and lanes else same,
                resident_nbytes=nbytes * stays // 100,
                ephemeral_nbytes=nbytes - nbytes * stays // 100,
            )
        improvable = asked.jobs[:lanes] if together else ()
        before, wanted = set(self.offered), self.improvable
        # Handed out, or of no use, in any case they may be looked for at once.
        self.improvable = wanted | set(improvable)
        made = m.ImprovementMade(planning=asked.planning, shares=tuple(shares.items()), improvable=improvable)
        self.tell(made)
        handed = self.offered.keys() - before
        assert handed in (set(), set(asked.jobs))
        self.improvable = (self.improvable - handed) | set(improvable) if handed else self.improvable
        what = "lanes" if together else "a plan"
        event(f"{what}, better, handed out" if handed else f"{what}, better, comes to nothing")

    @precondition(lambda self: self.improvements)
    @rule()
    def find_no_better_plan(self) -> None:
        asked = self.improvements.pop(0)
        before = set(self.offered)
        self.tell(m.NothingBetter(planning=asked.planning))
        assert self.offered.keys() == before
        event("no better lanes" if len(asked.jobs) > 1 else "no better plan")

    @precondition(lambda self: self.plannings)
    @rule()
    def planner_breaks(self) -> None:
        self.tell(m.PlanningFailed(planning=self.plannings.pop().planning, message="a defect"))

    @precondition(lambda self: self.can_adopt())
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        self.try_to_adopt(data.draw(st.sampled_from(self.can_adopt())))

    def can_adopt(self) -> list[m.JobId]:
        """Return whose threads are at a boundary and have a plan to take up."""
        return [job for job in sorted(self.offered) if self.turns.phase_of(job) is Phase.AWAY]

    def try_to_adopt(self, job: m.JobId) -> bool:
        if not self.turns.begin_change(job, self.offered[job].share):
            event("a job waits for room to grow")
            return False
        self.turns.end_change(job)
        plan = self.offered.pop(job)
        self.tell(m.PlanAdopted(job=job, planning=plan.planning))
        event("a plan is adopted")
        return True

    @precondition(lambda self: self.can_ask())
    @rule(data=st.data())
    def ask_for_a_turn(self, data: st.DataObject) -> None:
        self.turns.ask(data.draw(st.sampled_from(self.can_ask())), left_ns=1, ahead=data.draw(st.booleans()))
        self.turns.grant()

    def can_ask(self) -> list[m.JobId]:
        """Return whose threads are at a boundary without a plan to take up, and have told that they are."""
        away = (Phase.AWAY, Phase.APPROACHING)
        return [
            job
            for job in sorted(self.on_device - self.offered.keys())
            if self.turns.phase_of(job) in away and job not in self.in_retreat()
        ]

    @precondition(lambda self: self.in_transit())
    @rule(data=st.data())
    def a_state_is_gone(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.in_transit()))
        event(f"gone from {self.turns.phase_of(job)}")
        self.turns.gone(job)
        self.turns.grant()

    @precondition(lambda self: self.on_device)
    @rule(data=st.data())
    def give_up_asking(self, data: st.DataObject) -> None:
        """Told to stop, say."""
        self.turns.withdraw(data.draw(st.sampled_from(sorted(self.on_device))))
        self.turns.grant()

    @precondition(lambda self: self.have_a_turn())
    @rule(data=st.data())
    def end_a_turn(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.have_a_turn()))
        self.turns.serve(job, 1)
        self.turns.end(job)
        self.turns.grant()

    def have_a_turn(self) -> list[m.JobId]:
        return [job for job in sorted(self.on_device) if self.turns.has_turn(job)]

    @precondition(lambda self: self.quiet_asked < 2)
    @rule()
    def ask_for_quiet(self) -> None:
        """Somebody wants to measure."""
        self.quiet_asked += 1
        self.turns.ask_for_quiet()

    @precondition(lambda self: self.quiet_asked)
    @rule()
    def begin_quiet(self) -> None:
        if self.turns.begin_quiet():
            event("there is quiet")

    @precondition(lambda self: self.turns.is_quiet)
    @rule()
    def end_quiet(self) -> None:
        self.quiet_asked -= 1
        self.turns.end_quiet()
        self.turns.grant()

    def let_quiet_come(self) -> None:
        """Whoever asked for it gets it, once turns end and states go; no plan need be taken up for that."""
        while self.quiet_asked:
            for _ in range(4 * len(self.on_device) + 4):
                for job in self.in_transit():
                    self.turns.gone(job)
                for job in self.have_a_turn():
                    self.turns.end(job)
                self.turns.grant()
                if self.turns.is_quiet or self.turns.begin_quiet():
                    break
            self.end_quiet()

    @precondition(lambda self: self.threads())
    @rule(data=st.data())
    def thread_ends(self, data: st.DataObject) -> None:
        """Done, failed or stopped: it is the same to the others, and may happen in any state."""
        self.end(data.draw(st.sampled_from(self.threads())))

    @precondition(lambda self: self.least)
    @rule(
        data=st.data(),
        reason=st.sampled_from(
            [m.StopReason.CANCELLED, m.StopReason.LEASE_LOST, m.StopReason.PAUSED, m.StopReason.MOVED]
        ),
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

    @precondition(lambda self: self.can_free_memory())
    @rule(data=st.data())
    def free_memory(self, data: st.DataObject) -> None:
        """A thread has closed its memory and writes a checkpoint, or its model."""
        job = data.draw(st.sampled_from(self.can_free_memory()))
        self.stopping.add(job)
        self.leave_device(job)
        self.offered.pop(job, None)
        self.saving.add(job)
        self.tell(m.MemoryFreed(job=job))
        assert job not in self.state.shares
        event("memory is freed early")

    def can_free_memory(self) -> list[m.JobId]:
        return sorted(self.on_device - (self.offered.keys() - self.stopping))

    @precondition(lambda self: self.can_end_stage())
    @rule(data=st.data())
    def end_a_stage(self, data: st.DataObject) -> None:
        self.end_stage(data.draw(st.sampled_from(self.can_end_stage())))

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

    @precondition(lambda self: self.on_device)
    @rule(data=st.data())
    def drift(self, data: st.DataObject) -> None:
        self.tell(m.DriftDetected(job=data.draw(st.sampled_from(sorted(self.on_device)))))

    @precondition(lambda self: self.on_device)
    @rule(data=st.data())
    def model_used(self, data: st.DataObject) -> None:
        self.tell(m.UseChanged(job=data.draw(st.sampled_from(sorted(self.on_device)))))

    @rule()
    @precondition(lambda self: len(self.ended) > 3)
    def shut_the_worker_down(self) -> None:
        self.shut_down = True
        self.tell(m.ShutdownAsked())

    @invariant()
    def threads_hold_no_more_than_there_is(self) -> None:
        self.turns.validate()

    def teardown(self) -> None:
        """Without further faults, everything that can finish does, in bounded time."""
        self.let_quiet_come()
        for _ in range(60 * (len(self.least) + 1)):
            if self.claims:
                self.answer_claim()
            elif self.preparing - self.stopping:
                self.finish_preparing()
            elif self.plannings:
                self.answer_planning(lanes=2, stays=50, ahead=0)
            elif self.improvements:
                self.find_no_better_plan()
            elif self.in_transit():
                self.turns.gone(self.in_transit()[0])
                self.turns.grant()
            elif self.offered:
                if not any(self.try_to_adopt(job) for job in self.can_adopt()):
                    # Who has a turn comes to its end; nobody else is needed for the others to go on.
                    assert self.have_a_turn(), f"jobs {sorted(self.offered)} wait for room that nobody holds"
                    for job in self.have_a_turn():
                        self.turns.end(job)
            elif self.threads():
                done = sorted({*self.stopping, *self.explaining, *self.on_device} & set(self.threads()))
                assert done, f"jobs {self.threads()} wait for nothing"
                self.end(done[0])
            elif self.submitted and not self.shut_down:
                self.tick()
        assert not self.threads()
        assert not self.submitted or self.shut_down
        assert not self.state.shares
        assert self.turns.held_nbytes == 0
        assert self.exited == self.shut_down
