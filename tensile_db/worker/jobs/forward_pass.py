"""Outputs of a network for rows that it does not learn from, within the budget of the job.

Planned for what the job is granted at the moment, by the same planner; where a training's small budget has
no room for a whole batch going forward, smaller ones are used.
"""

from collections.abc import Callable

import torch

from tensile_db.capture.step import CapturedStep
from tensile_db.errors import DoesNotFit, TensileError
from tensile_db.scheduler.request import JobRequest
from tensile_db.worker.execution.binding import Batch
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.planned_forward import PlannedForward
from tensile_db.worker.planning.planning_process import Broken, Infeasible, Planned, Question

#: Before and after a turn going forward, tensors may have to be moved: not for every batch.
_LEAST_TURN_S = 0.2


class ForwardPass:
    """The forward step of a job whose own step is another one.  Used by the job's thread only."""

    def __init__(
        self, job: Job, memory: JobMemory, capture: Callable[[int], CapturedStep], *, batch_size: int
    ) -> None:
        """capture: the forward step for so many rows."""
        self.batch_size = batch_size
        self._job = job
        self._memory = memory
        self._capture = capture
        self._planned: PlannedForward | None = None

    def prepare(self) -> int:
        """Make sure that there is a program within the budget of now; return the rows of a batch.

        Raises DoesNotFit.
        """
        budget_nbytes = self._memory.account.budget_nbytes
        if self._planned is not None and self._planned.plan.budget_nbytes <= budget_nbytes:
            return self.batch_size
        self._job.turn.end()
        while True:
            step = self._capture(self.batch_size)
            answer = self._job.setting.plan(self._question(step, budget_nbytes))
            match answer:
                case Planned(plans=(plan,)):
                    self.close()
                    self._planned = PlannedForward(self._job, self._memory, step, plan)
                    return self.batch_size
                case Infeasible(needed_nbytes=needed_nbytes):
                    if self.batch_size == 1:
                        raise DoesNotFit(needed_nbytes=needed_nbytes, budget_nbytes=budget_nbytes)
                    self.batch_size = max(1, self.batch_size // 2)
                case Broken(message=message):
                    raise TensileError(f"planning the forward pass failed: {message}")

    def begin(self) -> bool:
        """Wait for a turn; return False where there is a newer plan to be taken up first.  Raises Stopped."""
        assert self._planned is not None
        return self._planned.begin()

    def run(self, batch: Batch) -> torch.Tensor:
        """Return the outputs of a batch, a row each.  Raises Stopped where the job must break off."""
        assert self._planned is not None
        return self._planned.run(batch, least_s=_LEAST_TURN_S).outputs["logits"]

    def close(self) -> None:
        """Free what the step holds beyond the persistent tensors, also after an iteration broke off."""
        if self._planned is not None:
            self._planned.close()
        self._planned = None

    def _question(self, step: CapturedStep, budget_nbytes: int) -> Question:
        device = self._job.setting.device.spec
        request = JobRequest(
            job_id=self._job.id,
            graph=step.graph,
            latencies_ns=self._job.predict(step),
            policy="auto",
            memory_limit_nbytes=budget_nbytes,
            splits_by_need=True,
        )
        return Question(requests=(request,), device=device)
