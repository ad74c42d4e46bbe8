"""A forward step of a job whose own plan is another one's, going forward in the job's turns."""

from tensile_db.capture.step import CapturedStep
from tensile_db.errors import JobCancelled
from tensile_db.scheduler.request import JobPlan
from tensile_db.worker.execution.binding import Batch
from tensile_db.worker.execution.executor import Executor, IterationResult
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.job import Job


class PlannedForward:
    """One step with its plan, ready to run.  Used by the job's thread only."""

    def __init__(self, job: Job, memory: JobMemory, step: CapturedStep, plan: JobPlan) -> None:
        self.plan = plan
        self._job = job
        self._executor = Executor(
            step,
            memory,
            should_stop=job.must_break_off,
            # A row would wait for the taking down, and a validation is soon over.
            replay=False,
        )

    def begin(self, *, left_ns: int | None = None) -> bool:
        """Wait for a turn; return False where there is a newer plan to be taken up first.  Raises Stopped.

        left_ns: what the job has still to do, predicted; None: as before.
        """
        if self._job.mailbox.has_order():
            self._job.turn.end()
            return False
        return self._job.turn.take(self._executor, self.plan.program, left_ns=left_ns)

    def run(self, batch: Batch, *, least_s: float = 0.0) -> IterationResult:
        """Go forward; least_s: of the turn.  Raises Stopped where the job must break off, KernelFailed."""
        try:
            result = self._executor.run_iteration(batch)
        except JobCancelled:
            raise self._job.break_off_reason() from None
        self._job.used_device(result.elapsed_ns)
        self._job.turn.ran(result.elapsed_ns, least_s=least_s)
        return result

    def close(self) -> None:
        """Free what the step holds beyond the persistent tensors, also after an iteration broke off."""
        self._executor.close()
