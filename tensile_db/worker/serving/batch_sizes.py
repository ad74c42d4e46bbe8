"""A served network going forward on fewer rows than it is planned for, so that one row need not pay for many.

The job is planned for its largest batch, whose memory is the bound of all.  Batches of 1, 2, 4, ... rows are
captured and planned within the same share aside, while rows already go forward, padded to the largest.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from tensile_db.capture.step import CapturedStep
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.worker.execution.binding import Batch
from tensile_db.worker.execution.executor import IterationResult
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.planned_forward import PlannedForward
from tensile_db.worker.planning.planning_process import Planned, Question
from tensile_db.worker.serving.forward_steps import Capture

log = logging.getLogger(__name__)

#: After the database could not be asked.
_TRY_AGAIN_AFTER_S = 5.0


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    step: CapturedStep
    #: None: there is none within the budget.
    plan: JobPlan | None


class BatchSize:
    """One of them, ready to run.  Used by the job's thread only."""

    def __init__(self, rows: int, forward: PlannedForward) -> None:
        self.rows = rows
        self._forward = forward

    @property
    def budget_nbytes(self) -> int:
        """What the job must be granted to run it."""
        return self._forward.plan.budget_nbytes

    def begin(self) -> bool:
        """Wait for a turn; return False where there is a newer plan to be taken up first.  Raises Stopped."""
        return self._forward.begin(left_ns=self._forward.plan.prediction.time_ns)

    def run(self, batch: Batch) -> IterationResult:
        """Go forward.  Raises Stopped where the job must break off, KernelFailed."""
        return self._forward.run(batch)

    def close(self) -> None:
        """Free what the step holds beyond the persistent tensors."""
        self._forward.close()


class BatchSizes:
    """Those of one job that are smaller than its largest.  Used by the job's thread only."""

    def __init__(
        self, job: Job, memory: JobMemory, capture: Capture, background: ThreadPoolExecutor, *, largest: int
    ) -> None:
        """background: where sizes are prepared."""
        self._job = job
        self._memory = memory
        self._capture = capture
        self._background = background
        self._ready: dict[int, BatchSize] = {}
        #: Rows -> the budget within which there is no program.
        self._hopeless: dict[int, int] = {}
        self._under_way: tuple[int, int, Future[_Prepared]] | None = None
        self._prepare_at = 0.0
        self._sizes = [2**power for power in range(largest.bit_length()) if 2**power < largest]

    @property
    def has_news(self) -> bool:
        """Whether one has been prepared that is yet to be taken up."""
        return self._under_way is not None and self._under_way[2].done()

    def find(self, rows: int) -> BatchSize | None:
        """Return the smallest that takes so many rows and fits the job's share; None: none does."""
        budget_nbytes = self._memory.account.budget_nbytes
        for size in self._sizes:
            ready = self._ready.get(size)
            if size >= rows and ready is not None and ready.budget_nbytes <= budget_nbytes:
                return ready
        return None

    def prepare_next(self, wake: Callable[[], None]) -> None:
        """Have the next one prepared that is missing, if none is; wake: called when it is."""
        if self._under_way is not None or time.monotonic() < self._prepare_at:
            return
        budget_nbytes = self._memory.account.budget_nbytes
        for size in self._sizes:
            ready = self._ready.get(size)
            if ready is not None and ready.budget_nbytes <= budget_nbytes:
                continue
            if self._hopeless.get(size, -1) >= budget_nbytes:
                continue
            future = self._background.submit(self._prepare, size, budget_nbytes)
            self._under_way = (size, budget_nbytes, future)
            future.add_done_callback(lambda _: wake())
            return

    def take_up(self) -> None:
        """Make what was prepared ready to run.  Raises what capturing raises."""
        if self._under_way is None or not self._under_way[2].done():
            return
        (size, budget_nbytes, future), self._under_way = self._under_way, None
        try:
            prepared = future.result()
        except DBAPIError as error:
            # Rows go forward padded to a larger size meanwhile.
            log.warning("batches of %s rows are prepared later: %s", size, error.orig)
            self._prepare_at = time.monotonic() + _TRY_AGAIN_AFTER_S
            return
        if prepared.plan is None:
            self._hopeless[size] = budget_nbytes
            return
        if size in self._ready:
            self._ready[size].close()
        forward = PlannedForward(self._job, self._memory, prepared.step, prepared.plan)
        self._ready[size] = BatchSize(size, forward)

    def close(self) -> None:
        """Free what they hold beyond the persistent tensors."""
        if self._under_way is not None:
            self._under_way[2].cancel()
        for ready in self._ready.values():
            ready.close()
        self._ready.clear()

    def _prepare(self, rows: int, budget_nbytes: int) -> _Prepared:
        """In the background: nothing of the job's own is touched but what never changes."""
        setting = self._job.setting
        # Which captures, too, and plans.
        setting.serving.preparations.wait_until_nobody_waits()
        step = self._job.with_workspaces_aside(self._capture(rows))
        request = JobRequest(
            job_id=self._job.id,
            graph=step.graph,
            latencies_ns=self._job.predict_aside(step),
            memory_limit_nbytes=budget_nbytes,
            splits_by_need=True,
        )
        answer = setting.plan(Question(requests=(request,), device=setting.device.spec))
        return _Prepared(step=step, plan=answer.plans[0] if isinstance(answer, Planned) else None)
