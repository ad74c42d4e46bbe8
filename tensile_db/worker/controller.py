"""The global controller: carries out what the state machine decides, and tells it what came of it.

One loop over one queue of events, in the worker's main thread.  Everything that takes long is elsewhere:
jobs in threads of their own, planning in a process of its own, heartbeats and notifications in threads.

Source: TENSILE section III-D (Global Controller).
"""

import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import jobs
from tensile_db.catalog.jobs import JobRow
from tensile_db.errors import DoesNotFit, LostLease
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.share import needed_nbytes, without_recorded
from tensile_db.worker.asked import look_for_requests
from tensile_db.worker.claims import Claims
from tensile_db.worker.handover import Held, RunJob
from tensile_db.worker.mailbox import PlanOrder
from tensile_db.worker.messages import (
    BeginStage,
    Claim,
    ClaimedJob,
    DistributePlan,
    Event,
    Exit,
    Explain,
    FailJob,
    HoldJob,
    Improve,
    Instruction,
    JobEnded,
    JobId,
    JobsClaimed,
    MakePlans,
    NothingBetter,
    PlanningId,
    Prepare,
    PrioritiesRead,
    Reason,
    RefuseJob,
    ReturnJob,
    ShutdownAsked,
    StartJob,
    StopAsked,
    StopJob,
    StopReason,
    Tick,
)
from tensile_db.worker.orders import better_orders, no_plans, plans_made
from tensile_db.worker.planning.asking import ask_explanation
from tensile_db.worker.planning.improving_process import ImprovementAnswer, PlanInForce
from tensile_db.worker.planning.planner import Improver, Planner
from tensile_db.worker.planning.planning_process import Answer, Planned, Question, planning_error
from tensile_db.worker.renamed import RenamedRoles
from tensile_db.worker.state import WorkerState
from tensile_db.worker.turnstile import Turnstile

log = logging.getLogger(__name__)


class Controller:
    """The worker's main loop."""

    def __init__(
        self,
        *,
        engine: Engine,
        worker: int,
        device: DeviceSpec,
        planner: Planner,
        improver: Improver,
        turnstile: Turnstile,
        run_job: RunJob,
        max_jobs: int,
        lease_s: float,
    ) -> None:
        self._engine = engine
        self._worker = worker
        self._device = device
        self._planner = planner
        self._improver = improver
        self._turnstile = turnstile
        self._run_job = run_job
        self._renamed = RenamedRoles(engine)
        self._claims = Claims(engine=engine, worker=worker, device=device, lease_s=lease_s)
        self._state = WorkerState(
            memory_nbytes=device.memory_nbytes, max_jobs=max_jobs, alone=turnstile.policy.alone
        )
        self._events: queue.SimpleQueue[Event | Callable[[], Event]] = queue.SimpleQueue()
        self._held: dict[JobId, Held] = {}
        #: Claimed, and not yet taken up or returned.
        self._claimed: dict[JobId, JobRow] = {}
        #: Plans of the newest planning that was answered, until they are handed out.
        self._orders: dict[JobId, PlanOrder] = {}
        #: Better plans that were found, until they are handed out or others are.
        self._better: dict[JobId, PlanOrder] = {}
        self._threads: dict[JobId, threading.Thread] = {}
        #: What rows of jobs in line have yet to be told.
        self._unsaid: dict[JobId, HoldJob] = {}
        self._ended = False

    def post(self, event: Event) -> None:
        """Tell the controller of an event; from any thread, or a signal's handler."""
        self._events.put(event)

    def wake(self) -> None:
        """Have jobs looked for, and what is asked of those that are held."""
        self.post(Tick())

    def stop(self) -> None:
        """Have every job leave a checkpoint and go back to the queue, then the loop end."""
        self.post(ShutdownAsked())

    def attempts(self) -> dict[int, int]:
        """Return the jobs held at present, with their attempts; from any thread."""
        return {int(job): held.row.attempt for job, held in list(self._held.items())}

    def shared_nbytes(self) -> int:
        """Return what the shares of its jobs take of the device, in bytes; from any thread.

        By it jobs are placed, for which others give up their recorded parts.
        """
        return needed_nbytes(without_recorded(share) for share in list(self._state.shares.values()))

    def run(self) -> None:
        """Handle events until the last job after `stop` is over."""
        while not self._ended:
            posted = self._events.get()
            event = posted() if callable(posted) else posted
            if isinstance(event, Tick):
                self._hold_again()
                for asked in look_for_requests(self._engine, self._worker):
                    self.post(asked)
                self._renamed.look()
                line = [self._held[job.id].row for job in self._state.in_line()]
                for moved in self._claims.find_better_off(line):
                    self.post(StopAsked(job=JobId(moved), reason=StopReason.MOVED))
            if isinstance(event, ShutdownAsked):
                # Before jobs are given back, which nobody then leaves to this worker.
                self._claims.stop()
            if isinstance(event, JobEnded):
                self._forget(event.job)
            if isinstance(event, PrioritiesRead):
                for job, priority in event.priorities:
                    self._turnstile.set_priority(job, priority)
            for instruction in self._state.handle(event):
                self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Claim():
                self._claim(instruction)
            case ReturnJob():
                self._claims.give_back(self._claimed.pop(instruction.job))
            case Prepare():
                self._prepare(self._claimed.pop(instruction.job))
            case MakePlans():
                self._make_plans(instruction)
            case Improve():
                self._improve(instruction)
            case Explain():
                self._explain(instruction)
            case StartJob() | DistributePlan():
                self._hand_out(instruction.job, instruction.planning)
            case BeginStage():
                held = self._held[instruction.job]
                held.order = None
                held.mailbox.begin_stage()
            case HoldJob():
                self._hold(instruction)
            case StopJob():
                log.info("job %s is told to stop: %s", instruction.job, instruction.reason)
                self._held[instruction.job].mailbox.stop(instruction.reason)
                self._turnstile.wake()
            case RefuseJob():
                refusal = DoesNotFit(
                    needed_nbytes=instruction.needed_nbytes,
                    budget_nbytes=instruction.budget_nbytes,
                    hint=instruction.hint,
                )
                self._held[instruction.job].mailbox.refuse(refusal)
            case FailJob():
                self._held[instruction.job].mailbox.refuse(
                    planning_error(instruction.message, instruction.hint)
                )
            case Exit():
                self._ended = True
            case _:
                assert_never(instruction)

    def _claim(self, claim: Claim) -> None:
        claimed = self._claims.take(
            limit=claim.limit, held=tuple(self._held), only_serving=claim.only_serving
        )
        self._claimed |= {JobId(row.id): row for row in claimed}
        self.post(JobsClaimed(jobs=tuple(map(_as_claimed, claimed))))

    def _prepare(self, row: JobRow) -> None:
        held = Held(row=row)
        job = JobId(row.id)
        self._held[job] = held
        thread = threading.Thread(
            target=self._run_job, args=(held, self.post), name=f"tensile-job-{row.id}", daemon=True
        )
        self._threads[job] = thread
        thread.start()

    def _forget(self, job: JobId) -> None:
        self._held.pop(job, None)
        self._better.pop(job, None)
        thread = self._threads.pop(job, None)
        if thread is not None:
            # It has nothing left to do but to return.
            thread.join()

    def _make_plans(self, instruction: MakePlans) -> None:
        requests = tuple(self._held[job].request for job, _ in instruction.reasons)
        reasons = dict(instruction.reasons)

        def answered(answer: Answer) -> None:
            # The controller's own thread makes the event, for it alone knows which plans are in force.
            self._events.put(lambda: self._planned(instruction.planning, requests, reasons, answer))

        question = self._question([job for job, _ in instruction.reasons], requests)
        arrives = any(share is None for share in question.shares)
        self._planner.ask(replace(question, at_once=arrives), answered)

    def _question(self, asked: Sequence[JobId], requests: tuple[JobRequest, ...]) -> Question:
        orders = [self._held[job].order for job in asked]
        return Question(
            requests=requests,
            device=self._device,
            sharing=self._turnstile.sharing,
            in_force=tuple(None if order is None else order.within for order in orders),
            shares=tuple(None if order is None else order.share for order in orders),
        )

    def _planned(
        self,
        planning: PlanningId,
        requests: Sequence[JobRequest],
        reasons: Mapping[JobId, Reason],
        answer: Answer,
    ) -> Event:
        if not isinstance(answer, Planned):
            return no_plans(planning, answer)
        event, self._orders = plans_made(planning, requests, reasons, answer, self._held)
        return event

    def _improve(self, instruction: Improve) -> None:
        held = {job: self._held[job] for job in instruction.jobs}
        begun = {job: each.order for job, each in held.items()}
        requests = tuple(each.request for each in held.values())

        def are_in_force() -> bool:
            return all(
                self._held.get(job) is each and _planning_of(each.order) == _planning_of(begun[job])
                for job, each in held.items()
            )

        def answered(answer: ImprovementAnswer | Answer) -> None:
            self._events.put(lambda: improved(answer))

        def improved(answer: ImprovementAnswer | Answer) -> Event:
            nothing = NothingBetter(planning=instruction.planning)
            if not are_in_force():
                return nothing
            event, orders = better_orders(instruction.planning, requests, answer, held)
            self._better |= orders
            return event if orders else nothing

        asked: PlanInForce | Question
        if len(instruction.jobs) > 1:
            asked = self._question(instruction.jobs, requests)
        else:
            (order,) = begun.values()
            assert order is not None, "what is improved is a plan in force"
            asked = PlanInForce(request=requests[0], within=order.within, share=order.share)
        # Of plans that are in force no more, nobody waits for the answer.
        self._improver.ask(asked, answered, are_in_force)

    def _hand_out(self, job: JobId, planning: PlanningId) -> None:
        better = self._better.pop(job, None)
        order = better if better is not None and better.planning == planning else self._orders[job]
        assert order.planning == planning
        held = self._held[job]
        held.order = order
        log.info("job %s gets a plan (%s) of %s bytes", job, order.reason, order.budget_nbytes)
        held.mailbox.order(order)
        self._turnstile.wake()

    def _explain(self, instruction: Explain) -> None:
        own = self._held[instruction.job].request
        neighbours = tuple(self._held[job].request for job in instruction.neighbours)
        mailbox = self._held[instruction.job].mailbox
        ask_explanation(
            self._planner.ask,
            self._improver.plan,
            own,
            neighbours,
            self._device,
            self._turnstile.sharing,
            mailbox.explain,
        )

    def _hold(self, instruction: HoldJob) -> None:
        said = False
        try:
            with self._engine.begin() as conn:
                fence = self._held[instruction.job].row.fence
                said = jobs.hold_in_line(conn, fence, instruction.wait_reason)
        except DBAPIError as error:
            log.warning("job %s waits, and its row does not say so: %s", instruction.job, error.orig)
        except LostLease:
            self.post(StopAsked(job=instruction.job, reason=StopReason.LEASE_LOST))
            return
        self._unsaid.pop(instruction.job, None)
        if not said:
            self._unsaid[instruction.job] = instruction

    def _hold_again(self) -> None:
        """Say of jobs that still wait what their rows could not be told."""
        in_line = {job.id for job in self._state.in_line()}
        for job, instruction in list(self._unsaid.items()):
            if job in in_line:
                self._hold(instruction)
            else:
                del self._unsaid[job]


def _planning_of(order: PlanOrder | None) -> PlanningId | None:
    return None if order is None else order.planning


def _as_claimed(row: JobRow) -> ClaimedJob:
    return ClaimedJob(
        id=JobId(row.id),
        priority=row.priority,
        explains=row.kind == "explain",
        searches=row.kind == "search",
        serves=row.kind == "serve",
        resumes=bool(row.iteration),
    )
