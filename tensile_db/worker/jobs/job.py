"""What every part of a job's thread works with."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from sqlalchemy import Connection, Engine

from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import events, jobs
from tensile_db.catalog.engine import in_transaction
from tensile_db.catalog.graphs import Described
from tensile_db.catalog.jobs import JobRow
from tensile_db.graph import StepGraph
from tensile_db.scheduler.policies import LOOK_FOR_SPLITS
from tensile_db.scheduler.policies.in_parts import are_worth_looking_for
from tensile_db.scheduler.request import SplitsWithin
from tensile_db.scheduler.shares import limit_of
from tensile_db.worker.devices.device import Device
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.handover import Held, PlannerInput
from tensile_db.worker.jobs.caches import job_folder, locked
from tensile_db.worker.jobs.device_loss import DeviceLoss
from tensile_db.worker.jobs.records import Records
from tensile_db.worker.jobs.turn import Turn
from tensile_db.worker.latencies.known import predict_step
from tensile_db.worker.latencies.load import utilization_beside
from tensile_db.worker.mailbox import Mailbox, PlanOrder, Stopped
from tensile_db.worker.messages import Event, JobId, JobPrepared, StageEnded, StopReason
from tensile_db.worker.planning.planning_process import Answer, Broken, Question, planning_error
from tensile_db.worker.planning.splitting_process import SplitSearch
from tensile_db.worker.serving.setting import ServingSetting
from tensile_db.worker.turnstile import Turnstile
from tensile_db.worker.workspaces.known import Transact, Workspaces

log = logging.getLogger(__name__)

_LOOK_UP_S = 60.0
#: A process that looks for splits and is killed may be the victim of another's hunger for memory, once.
_LOOKS_FOR_SPLITS = 2
#: Splits are looked for again so often because of what their parts need.
_LOOKS_AT_PARTS = 3


@dataclass(frozen=True, kw_only=True)
class JobSetting:
    """What a worker's jobs share."""

    engine: Engine
    #: For reading rows, on connections that become their submitter.
    dsn: str
    device: Device
    #: Jobs have folders of their own below (caches.py).
    cache_dir: Path
    #: Where they take turns on it.
    turnstile: Turnstile
    #: Asks the planner, and waits.
    plan: Callable[[Question], Answer]
    #: Tells the planner of a graph that it will be asked about, and does not wait.
    foresee: Callable[[StepGraph], None]
    #: Asks for splits, and does not wait: as Child.ask.
    find_splits: Callable[[SplitSearch, Callable[[SplitsWithin | Broken], None], Callable[[], bool]], None]
    #: Under which the device's latencies are kept (latencies/hardware.py).
    hardware: str
    #: Of each job's kernels on the cpu device.
    threads: int
    serving: ServingSetting
    #: Of the kernels of jobs' ops.
    workspaces: Workspaces
    device_loss: DeviceLoss = field(default_factory=DeviceLoss)


@dataclass(kw_only=True)
class Job:
    """One attempt at a job, in its thread."""

    setting: JobSetting
    held: Held
    records: Records
    #: Tells the controller.
    post: Callable[[Event], None]
    started_s: float = field(default_factory=time.monotonic)
    #: It was the first to meet the loss of the worker's device.
    has_lost_device: bool = False
    #: By digest: the graphs that its plans may be of.
    _described: dict[str, Described] = field(default_factory=dict)
    _turn: Turn | None = None
    #: By this attempt.
    _device_seconds: float = 0.0
    #: What the job's row says of peaks by name, and those of earlier stages alone.
    _peaks: dict[str, int] = field(default_factory=dict)
    _earlier_peaks: dict[str, int] = field(default_factory=dict)
    _stages: int = 0

    @property
    def id(self) -> JobId:
        """The job's id."""
        return JobId(self.held.row.id)

    @property
    def row(self) -> JobRow:
        """The request."""
        return self.held.row

    @property
    def mailbox(self) -> Mailbox:
        """What the controller says."""
        return self.held.mailbox

    def describe(self, described: Described) -> None:
        """Have the catalog keep a captured graph, which the job will be planned for."""
        self._described[described.graph.digest] = described
        self.records.later(described.ensure)

    def described(self, digest: str) -> Described:
        """Return a captured graph that was described, by its digest."""
        return self._described[digest]

    @property
    def folder(self) -> Path:
        """Where its rows are kept until it has ended, for all attempts on this machine."""
        return job_folder(self.setting.cache_dir, self.row)

    @property
    def shares_folder(self) -> bool:
        """Whether other jobs use the folder, too: it is a trial."""
        return self.row.search_id is not None

    def making_files(self) -> AbstractContextManager[None]:
        """Keep other jobs from making the same files of the folder meanwhile.  Raises Stopped."""
        return locked(self.folder, self.check) if self.shares_folder else nullcontext()

    def check(self) -> None:
        """Raise Stopped if the job was told to stop."""
        self.mailbox.check()

    def must_break_off(self) -> bool:
        """Whether to stop within an iteration; cheap."""
        return self.mailbox.must_break_off()

    def used_device(self, took_ns: int) -> None:
        """Count the device time of an iteration, for quotas."""
        self._device_seconds += took_ns / 1e9
        self.records.note(device_seconds=self.row.device_seconds + self._device_seconds)

    def tell_peak(self, name: str, nbytes: int) -> None:
        """Put a peak off for the job's row, where it is higher than those of earlier stages.

        name: vanilla_peak_nbytes or measured_peak_nbytes; others are of the newest plan.
        """
        self._peaks[name] = max(nbytes, self._earlier_peaks.get(name, 0))
        self.records.progress(**{name: self._peaks[name]})

    def held_before(self, **nbytes: int) -> None:
        """Let peaks be of an earlier stage, as of `tell_peak`."""
        for name, value in nbytes.items():
            self._earlier_peaks[name] = max(value, self._earlier_peaks.get(name, 0))

    def recall_peak(self) -> None:
        """Let the peak that earlier attempts measured be one of an earlier stage."""
        if self.row.attempt > 1:
            measured = self.records.must(lambda conn: jobs.measured_peak_nbytes(conn, self.id))
            self.held_before(measured_peak_nbytes=measured)

    def enter(self, phase: str) -> None:
        """Begin a phase, and let the job's row say so at once.  Raises Stopped, LostLease."""
        self.check()
        self.records.progress(phase=phase)
        self.records.flush()

    def notice(self, message: str) -> None:
        """Have whoever waits for the job told something that they may not expect."""
        self.records.later(lambda conn: events.add(conn, self.id, "notice", {"message": message}))

    def predict(self, step: CapturedStep) -> tuple[int, ...]:
        """Return the predicted latency of each op of a step, ns by op id, beside the jobs that run now."""
        return self.records.must(lambda conn: self._predict(conn, step))

    def predict_aside(self, step: CapturedStep) -> tuple[int, ...]:
        """Return the same, in another thread than the job's.  Raises the database's errors."""
        return in_transaction(self.setting.engine, lambda conn: self._predict(conn, step))

    def with_workspaces(self, step: CapturedStep) -> CapturedStep:
        """Return a step with its ops' workspaces charged, measured now where they are unknown.

        Not within a turn.  Raises Stopped, DeviceLost.
        """
        return self._with_workspaces(step, self.records.must)

    def with_workspaces_of_parts(self, step: CapturedStep) -> CapturedStep:
        """Return the step that the job is planned for, likewise, and as its parts need that it may run in.

        Raises TensileError, too, where looking for splits fails.
        """
        workspaces, limit_nbytes = self.setting.workspaces, self._measuring_limit_nbytes()
        step = self.with_workspaces(step)
        if not self.setting.device.watches_memory:
            return step
        # With more charged, ops may be split otherwise.
        for _ in range(_LOOKS_AT_PARTS):
            found = self._find_splits(step.graph, self.row)
            if found is None:
                break
            seen = workspaces.measure_parts(
                step, found.rewriting, self.records.must, self.check, limit_nbytes=limit_nbytes
            )
            if seen is step:
                break
            step = seen
        return step

    def with_known_workspaces(self, step: CapturedStep) -> CapturedStep:
        """Return a step with those workspaces charged that are known: nothing is run."""
        return self.setting.workspaces.lookup(step, self.records.must)

    def with_workspaces_aside(self, step: CapturedStep) -> CapturedStep:
        """Return the same, in another thread than the job's.  Raises the database's errors, too."""
        return self._with_workspaces(step, partial(in_transaction, self.setting.engine))

    def _with_workspaces(self, step: CapturedStep, transact: Transact) -> CapturedStep:
        return self.setting.workspaces.measure(
            step, transact, self.check, limit_nbytes=self._measuring_limit_nbytes()
        )

    def _measuring_limit_nbytes(self) -> int:
        device = self.setting.device
        # What the job holds already is within its limit, too.
        return limit_of(self.row, device.spec.memory_nbytes) - device.memory.used_by(self.id)

    def _predict(self, conn: Connection, step: CapturedStep) -> tuple[int, ...]:
        setting = self.setting
        others = setting.device.memory.jobs - {self.id}
        # Those of its lane wait while it computes.
        beside = min(len(others), setting.device.spec.concurrency - 1)
        utilization = utilization_beside(setting.device, beside, setting.threads)
        return predict_step(
            conn, step, setting.device.spec, hardware=setting.hardware, utilization=utilization
        ).latencies_ns

    def admit(self, planner_input: PlannerInput, *, phase: str) -> PlanOrder:
        """Wait until the job may run, and by which plan.  Raises Stopped, DoesNotFit, LostLease."""
        self.tell_planner(planner_input)
        order = self.mailbox.wait_for_order()
        kind, fence = "stage_begun" if self._stages else "started", self.records.fence
        self.records.later(
            lambda conn: jobs.start(conn, fence, phase=phase, budget_nbytes=order.budget_nbytes, kind=kind)
        )
        return order

    def end_stage(self) -> None:
        """Give up plan and share; not on the device.  Then `begin_stage`."""
        self._stages += 1
        self.held_before(**self._peaks)
        self.post(StageEnded(job=self.id))

    def begin_stage(self) -> None:
        """Wait until another graph may be prepared, to be admitted with it.  Raises Stopped."""
        self.mailbox.wait_for_stage()

    def tell_planner(self, planner_input: PlannerInput) -> None:
        """Let the job be planned.  Raises Stopped, LostLease, TensileError where looking for splits fails."""
        self.enter("planning")
        found = self._find_splits(planner_input.graph, planner_input)
        self.held.planner_input = replace(planner_input, found_splits=found)
        self.post(JobPrepared(job=self.id))

    def _find_splits(self, graph: StepGraph, asked: PlannerInput | JobRow) -> SplitsWithin | None:
        """Return what the job's policy would look for while plans of other jobs wait; None: nothing."""
        keeps_bits = LOOK_FOR_SPLITS.get(asked.policy)
        # Of another limit the planner would look itself.
        limit_nbytes = limit_of(asked, self.setting.device.spec.memory_nbytes)
        if keeps_bits is None or not are_worth_looking_for(graph, limit_nbytes):
            return None
        search = SplitSearch(graph=graph, limit_nbytes=limit_nbytes, keeps_bits=keeps_bits)
        for _ in range(_LOOKS_FOR_SPLITS):
            answer = self._ask_for_splits(search)
            if not isinstance(answer, Broken):
                return answer
            failure = answer
            log.warning("the splits of job %s were not found: %s", self.id, failure.message)
        # Were the planner left to look, other jobs would wait for that, and lose it where it is killed, too.
        raise planning_error(failure.message, failure.hint)

    def _ask_for_splits(self, search: SplitSearch) -> SplitsWithin | Broken:
        """Ask, and wait for the answer.  Raises Stopped."""
        answers: list[SplitsWithin | Broken] = []

        def answered(answer: SplitsWithin | Broken) -> None:
            answers.append(answer)
            self.mailbox.wake()

        self.setting.find_splits(search, answered, lambda: self.mailbox.stop_reason is None)
        while not answers:
            self.mailbox.wait_for_news(_LOOK_UP_S, lambda: answers)
            self.check()
        return answers[0]

    @contextmanager
    def on_device(
        self, order: PlanOrder, *, state: Mapping[str, torch.Tensor], seed: int, keeps_host: bool = False
    ) -> Iterator[JobMemory]:
        """Hold memory and take turns on the device; state, keeps_host: as of JobMemory."""
        self.setting.turnstile.come_in(self.id, priority=self.row.priority, serves=self.row.kind == "serve")
        try:
            opened = JobMemory(
                self.setting.device,
                job=self.id,
                budget_nbytes=order.budget_nbytes,
                state=state,
                seed=seed,
                keeps_host=keeps_host,
            )
            # Else this frame would keep what the job's steps take over.
            del state
            with opened as memory:
                # Nobody writes what the host keeps.
                turn = Turn(self.setting.turnstile, self.mailbox, memory, job=self.id, lingers=keeps_host)
                self._turn = turn
                try:
                    yield memory
                finally:
                    turn.let_go()
                    self.setting.turnstile.depart(self.id)
        finally:
            self._turn = None
            self.setting.turnstile.leave(self.id)

    @property
    def turn(self) -> Turn:
        """The job's turns, while it is on the device."""
        assert self._turn is not None, "the job is not on the device"
        return self._turn

    def break_off_reason(self) -> Stopped:
        """Return the exception of a job that broke off within an iteration."""
        return Stopped(self.mailbox.stop_reason or StopReason.CANCELLED)
