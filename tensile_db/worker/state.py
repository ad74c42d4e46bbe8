"""The worker's decisions: events in, instructions out.  Pure: no clock, no database, no device.

A job passes through the states that `held.py` pictures; `_transition_<from>_<to>` is what follows from an
arrow there.

Memory.  Plans are made for the whole device at once, one planning at a time, and the next one is made when
all of the last one's plans are taken up ("rolled out").  Each comes with a share of the device; shares are
handed out at once, and the turnstile (`turnstile.py`) lets nobody hold what another has not given up yet.

Improvements.  Plans are made at once, and so are lanes chosen, for somebody waits.  Where there may be
better ones they are looked for: first lanes of all jobs, then a job's plan at a time, begun when nobody
waits.  Whoever asks for plans meanwhile does not wait for it, and where a job gets another plan or share,
what is found for it is of no use.

Line.  All ready jobs are planned together with the running ones; if they do not fit, only the first is; if
that one does not fit now but would fit alone, it waits at the head of the line and nothing passes it
until memory is given back, so that small jobs cannot starve a large one.  One that would not fit alone
is refused at once.  Under a sharing policy that lets jobs run alone only (`fifo`), the first waits until
nobody runs.

Source: TENSILE section III-D (Global Controller), IV-F (re-planning on arrival); the manner is that of
dask.distributed's worker_state_machine.
"""

from collections import deque
from collections.abc import Callable
from typing import assert_never

from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.worker import messages as m
from tensile_db.worker import waiting
from tensile_db.worker.claiming import Claiming
from tensile_db.worker.held import HeldJob, JobState
from tensile_db.worker.improvements import Improvements
from tensile_db.worker.line import Line
from tensile_db.worker.plannings import Planning, Plannings

#: Events kept for a look back at what led to a defect.
_STORY_LENGTH = 256


class WorkerState:
    """All jobs of one worker, and their shares of its device.  One mutating entry point: `handle`."""

    def __init__(self, *, memory_nbytes: int, max_jobs: int, alone: bool = False) -> None:
        """memory_nbytes: of the device; alone: let jobs run one at a time only."""
        self.memory_nbytes = memory_nbytes
        self._alone = alone
        #: The newest share that each job was given; kept until its thread is over.
        self.shares: dict[m.JobId, Share] = {}
        self.jobs: dict[m.JobId, HeldJob] = {}
        self.story: deque[tuple[m.Event, tuple[m.Instruction, ...]]] = deque(maxlen=_STORY_LENGTH)
        #: What the event at hand has led to so far.
        self._out: list[m.Instruction] = []
        self._shutting_down = False
        self._exited = False
        self._claiming = Claiming(max_jobs)
        self._plannings = Plannings()
        self._improvements = Improvements()
        #: Why the running jobs must be planned again, if they must.
        self._due: m.Reason | None = None
        self._line = Line()
        #: The ready jobs did not fit all together: plan only the first.
        self._one_at_a_time = False
        self._transitions: dict[tuple[JobState, JobState], Callable[[HeldJob], None]] = {
            (JobState.PREPARING, JobState.READY): self._transition_preparing_ready,
            (JobState.PREPARING, JobState.EXPLAINING): self._transition_preparing_explaining,
            (JobState.PREPARING, JobState.STOPPING): self._transition_quietly,
            (JobState.EXPLAINING, JobState.STOPPING): self._transition_quietly,
            (JobState.READY, JobState.ADMITTED): self._transition_ready_admitted,
            (JobState.READY, JobState.STOPPING): self._transition_ready_stopping,
            (JobState.ADMITTED, JobState.RUNNING): self._transition_quietly,
            (JobState.ADMITTED, JobState.STOPPING): self._transition_out_of_rollout,
            (JobState.RUNNING, JobState.STOPPING): self._transition_out_of_rollout,
            (JobState.RUNNING, JobState.PREPARING): self._transition_running_preparing,
        }

    def handle(self, event: m.Event) -> list[m.Instruction]:
        """Take an event in; return what is to be done, in order."""
        self._out = []
        self._take(event)
        self._next_planning()
        self._next_improvement()
        self._next_claim()
        if self._shutting_down and not self.jobs and not self._claiming.under_way and not self._exited:
            self._exited = True
            self._out.append(m.Exit())
        self.story.append((event, tuple(self._out)))
        return self._out

    def in_line(self) -> list[HeldJob]:
        """Return the jobs that wait for memory, the first to be served first."""
        return self._in_state(JobState.READY)

    def validate(self) -> None:
        """Assert the invariants that hold between any two events."""
        planning, rollout = self._plannings.under_way, self._plannings.rollout
        assert not (planning and rollout), "a planning was begun before the last one was rolled out"
        alive = {job.id: self.shares[job.id] for job in self._in_state(JobState.ADMITTED, JobState.RUNNING)}
        assert needed_nbytes(alive.values()) <= self.memory_nbytes, "more is shared out than there is"
        assert self.shares.keys() <= self.jobs.keys(), "a job that is over has a share"
        for job in self.jobs.values():
            if job.state in (JobState.PREPARING, JobState.READY, JobState.EXPLAINING):
                assert job.id not in self.shares, f"job {job.id} is {job.state} and has a share"
            if job.state is JobState.ADMITTED:
                assert job.id in rollout, f"job {job.id} is admitted without a plan"
        assert all(self._is(job, JobState.ADMITTED) or self._is(job, JobState.RUNNING) for job in rollout)
        running = {job.id for job in self._in_state(JobState.RUNNING)}
        self._improvements.validate(running, running | rollout.keys())
        head = self._line.held_head
        assert head is None or (self.jobs[head.id] is head and head.state is JobState.READY)
        if self._shutting_down:
            assert all(job.state is JobState.STOPPING for job in self.jobs.values())
        elif self._plannings.may_begin:
            # Nothing is under way, so nothing may be left to do: no wake-up was lost.
            assert self._due is None, "the running jobs were not planned again"
            line = self.in_line()
            assert not line or self._line.is_held(line), "a job in line was forgotten"
            between = any(job.between_stages for job in self.jobs.values())
            assert not line or self.shares or between, "a job waits for memory that nobody holds"
            assert self._improvements.under_way or not self._improvements.wanted, "a plan was to be improved"

    def _take(self, event: m.Event) -> None:
        match event:
            case m.Tick():
                self._claiming.look_again()
            case m.JobsClaimed():
                self._jobs_claimed(event)
            case m.JobPrepared():
                job = self.jobs.get(event.job)
                if job is not None and job.state is JobState.PREPARING:
                    self._transition(job, JobState.EXPLAINING if job.claimed.explains else JobState.READY)
            case m.PlansMade():
                self._plans_made(event)
            case m.PlanInfeasible() | m.PlanningFailed():
                self._no_plans_made(event)
            case m.ImprovementMade():
                self._improvements.found(event)
            case m.NothingBetter():
                self._improvements.found_nothing(event.planning)
            case m.PlanAdopted():
                self._plan_adopted(event)
            case m.DriftDetected() | m.UseChanged():
                # A departure already due makes a new plan from the newest latencies anyway.
                if self._is(event.job, JobState.RUNNING) and self._due is None:
                    self._due = m.Reason.DRIFT if isinstance(event, m.DriftDetected) else m.Reason.USE
            case m.StopAsked():
                self._stop(event.job, event.reason)
            case m.PrioritiesRead():
                self._order_line(event)
            case m.MemoryFreed():
                if self._is(event.job, JobState.RUNNING):
                    # It has done its work, and has yet to write it down.
                    self._transition(self.jobs[event.job], JobState.STOPPING)
                if self._is(event.job, JobState.STOPPING):
                    self._free_memory(event.job)
            case m.StageEnded():
                if self._is(event.job, JobState.RUNNING):
                    self._transition(self.jobs[event.job], JobState.PREPARING)
                # One that was told to stop meanwhile holds nothing, either.
                self._free_memory(event.job)
            case m.JobEnded():
                self._job_ended(event.job)
            case m.ShutdownAsked():
                self._shutting_down = True
                for job in sorted(self.jobs.values(), key=lambda job: job.rank):
                    self._stop(job.id, m.StopReason.SHUTDOWN)
            case _:
                assert_never(event)

    def _jobs_claimed(self, event: m.JobsClaimed) -> None:
        self._claiming.answered(found=bool(event.jobs))
        for claimed in event.jobs:
            assert claimed.id not in self.jobs, f"job {claimed.id} is held, and was claimed once more"
            if self._shutting_down:
                self._out.append(m.ReturnJob(job=claimed.id))
            else:
                self.jobs[claimed.id] = HeldJob(claimed=claimed, priority=claimed.priority)
                self._out.append(m.Prepare(job=claimed.id))

    def _plans_made(self, event: m.PlansMade) -> None:
        planning = self._close_planning(event.planning)
        if planning is None:
            return
        if planning.trial:
            self._hold_line(planning.candidates[0])
            return
        given = dict(event.shares)
        assert set(planning.candidates) <= set(given) <= {*planning.candidates, *planning.running}
        together = {job: self.shares[job] for job in planning.running} | given
        # Else somebody would wait for ever.
        assert needed_nbytes(together.values()) <= self.memory_nbytes, "the plans exceed the memory"
        self._due = None
        self._one_at_a_time = False
        in_lanes = (*planning.running, *planning.candidates) if event.quick_lanes else ()
        self._improvements.want(event.improvable, changed=given, in_lanes=in_lanes)
        self._hand_out(planning.id, event.shares)

    def _hand_out(self, planning: m.PlanningId, shares: tuple[tuple[m.JobId, Share], ...]) -> None:
        self.shares |= dict(shares)
        for job_id, share in shares:
            self._plannings.hand_out(job_id, planning)
            if self._is(job_id, JobState.READY):
                self._transition(self.jobs[job_id], JobState.ADMITTED)
                self._out.append(m.StartJob(job=job_id, planning=planning, share=share))
            else:
                self._out.append(m.DistributePlan(job=job_id, planning=planning, share=share))

    def _plan_adopted(self, event: m.PlanAdopted) -> None:
        taken_up = self._plannings.take_up(event.job, event.planning)
        if taken_up and self._is(event.job, JobState.ADMITTED):
            self._transition(self.jobs[event.job], JobState.RUNNING)

    def _no_plans_made(self, event: m.PlanInfeasible | m.PlanningFailed) -> None:
        planning = self._close_planning(event.planning)
        if planning is None:
            return
        if not planning.candidates:
            # The running jobs keep the plans that they have.
            self._due = None
        elif len(planning.candidates) > 1:
            self._one_at_a_time = True
        elif planning.running:
            # Not beside these; alone?
            self._ask(self._plannings.begin(candidates=planning.candidates, running=(), trial=True))
        else:
            candidate = planning.candidates[0]
            self._one_at_a_time = False
            self._transition(self.jobs[candidate], JobState.STOPPING)
            self._out.append(m.refusal_of(candidate, event))

    def _order_line(self, event: m.PrioritiesRead) -> None:
        for job_id, priority in event.priorities:
            if job_id in self.jobs:
                self.jobs[job_id].priority = priority
        if not self._line.is_held(self.in_line()):
            # Another is first now, and may fit.
            self._line.look_again()

    def _stop(self, job_id: m.JobId, reason: m.StopReason) -> None:
        job = self.jobs.get(job_id)
        if job is None or not job.may_be_told(reason):
            return
        if job.state is not JobState.STOPPING:
            self._transition(job, JobState.STOPPING)
        job.stop_reason = reason
        self._out.append(m.StopJob(job=job_id, reason=reason))

    def _job_ended(self, job_id: m.JobId) -> None:
        job = self.jobs.pop(job_id, None)
        if job is None:
            return
        self._leave_between_stages(job)
        self._claiming.look_again()
        self._line.leave(job_id)
        self._plannings.forget(job_id)
        self._improvements.forget(job_id)
        self._free_memory(job_id)

    def _leave_between_stages(self, job: HeldJob) -> None:
        if job.between_stages:
            job.between_stages = False
            self._line.look_again()

    def _free_memory(self, job_id: m.JobId) -> None:
        if self.shares.pop(job_id, None) is not None:
            self._due = m.Reason.DEPARTURE
            self._line.look_again()

    def _transition(self, job: HeldJob, to: JobState) -> None:
        self._transitions[job.state, to](job)
        job.state = to

    def _transition_quietly(self, job: HeldJob) -> None: ...

    def _transition_preparing_ready(self, job: HeldJob) -> None:
        self._leave_between_stages(job)
        self._out += self._line.join(job)

    def _transition_preparing_explaining(self, job: HeldJob) -> None:
        neighbours = tuple(held.id for held in self._in_state(JobState.RUNNING, JobState.ADMITTED))
        self._out.append(m.Explain(job=job.id, neighbours=neighbours))

    def _transition_ready_admitted(self, job: HeldJob) -> None:
        job.wait_reason = ""

    def _transition_ready_stopping(self, job: HeldJob) -> None:
        self._line.leave(job.id)

    def _transition_out_of_rollout(self, job: HeldJob) -> None:
        self._plannings.forget(job.id)
        self._improvements.forget(job.id)

    def _transition_running_preparing(self, job: HeldJob) -> None:
        self._transition_out_of_rollout(job)
        job.between_stages = True
        self._out.append(m.BeginStage(job=job.id))

    def _next_planning(self) -> None:
        """Begin a planning if one is called for and none is under way."""
        if self._shutting_down or not self._plannings.may_begin:
            return
        running = tuple(job.id for job in self._in_state(JobState.RUNNING))
        line = self.in_line()
        if line and self._alone and not line[0].claimed.serves and self._at_work():
            self._out += self._line.hold(line, waiting.for_the_end_of(min(self._at_work())))
        if line and not self._line.is_held(line):
            chosen = line[:1] if self._one_at_a_time or self._alone else line
            candidates = tuple(job.id for job in chosen)
            self._ask(self._plannings.begin(candidates=candidates, running=running))
        elif self._due is not None and running:
            self._ask(self._plannings.begin(candidates=(), running=running))
        else:
            self._due = None

    def _ask(self, planning: Planning) -> None:
        reasons = (
            *((job, self._due or m.Reason.ARRIVAL) for job in planning.running),
            *((job, self.jobs[job].first_reason) for job in planning.candidates),
        )
        self._out.append(m.MakePlans(planning=planning.id, reasons=reasons, trial=planning.trial))

    def _close_planning(self, planning_id: m.PlanningId) -> Planning | None:
        """Close the planning; return it, or None if a change of one of its jobs makes its plans void."""
        planning = self._plannings.close(planning_id)
        if planning is None:
            return None
        intact = all(self._is(job, JobState.READY) for job in planning.candidates) and all(
            self._is(job, JobState.RUNNING) for job in planning.running
        )
        return planning if intact else None

    def _hold_line(self, head: m.JobId) -> None:
        """Let the head wait for memory, and everyone else behind it."""
        line = self.in_line()
        if not self.shares or line[0].id != head:
            # Whoever held the memory left while the question was with the planner, or another came first.
            return
        self._out += self._line.hold(line, waiting.for_memory(self.shares.values(), self.memory_nbytes))

    def _next_improvement(self) -> None:
        """Hand out what better was found, or look for what is wanted, where nobody waits."""
        if self._shutting_down or not self._plannings.may_begin:
            return
        found = self._improvements.take()
        # Others give up no memory for it.
        if found is not None and found.shares is not None and self._fit(dict(found.shares)):
            self._improvements.handed_out(found)
            self._hand_out(found.id, found.shares)
            return
        if self._improvements.wanted and self._improvements.under_way is None:
            begun = self._improvements.begin(self._plannings.new_id())
            self._out.append(m.Improve(jobs=begun.jobs, planning=begun.id))

    def _fit(self, given: dict[m.JobId, Share]) -> bool:
        return needed_nbytes((self.shares | given).values()) <= self.memory_nbytes

    def _next_claim(self) -> None:
        claim = None if self._shutting_down else self._claiming.next_claim(self.jobs.values())
        if claim is not None:
            self._out.append(claim)

    def _at_work(self) -> list[m.JobId]:
        """Return who holds memory, or is about to again, and does not serve."""
        held = [job for job in self.jobs.values() if job.id in self.shares or job.between_stages]
        return [job.id for job in held if not job.claimed.serves]

    def _in_state(self, *states: JobState) -> list[HeldJob]:
        return sorted((job for job in self.jobs.values() if job.state in states), key=lambda job: job.rank)

    def _is(self, job_id: m.JobId, state: JobState) -> bool:
        return job_id in self.jobs and self.jobs[job_id].state is state
