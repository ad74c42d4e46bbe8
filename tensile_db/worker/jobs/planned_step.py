"""A captured step that runs by the newest plan, and tells what came of it.

At each boundary a new plan is taken up; every few iterations the ops' latencies are sampled, and when they
have left those that the plan was made from, the controller hears of it.

Source: TENSILE sections III-D (Executor) and IV-E.
Differs: the paper gives neither threshold nor period; ours are below.  Sampling stops the clock around each
op, which costs little, but not nothing: hence not every iteration.
"""

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from tensile_db.capture.packed_step import planned_step
from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import events, latencies, metrics, plans
from tensile_db.errors import JobCancelled
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.scheduler.plan import Rewriting
from tensile_db.scheduler.rewriting import captured_latencies_ns
from tensile_db.worker.execution.binding import Batch
from tensile_db.worker.execution.executor import Executor, IterationResult
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.sampling import Sampling
from tensile_db.worker.mailbox import PlanOrder
from tensile_db.worker.messages import DriftDetected, PlanAdopted

#: |s' - s| / s from which on a new plan is asked for.
DRIFT_THRESHOLD = 0.25

#: From this share of the averages on that a sample lies beside them, another one is due soon.
_SURPRISE = 0.1

#: A new plan because of drift comes no more often than this, so that noise costs little.
_DRIFT_PAUSE_S = 5.0

_WRITE_LATENCIES_EVERY_S = 10.0


#: Going forward so often is worth a recording: the first five iterations are run op by op, and taking down
#: takes the time of some more.
_REPEATS_FROM = 64


def repeats(iterations: int) -> bool:
    """Whether a step that goes forward has so many iterations that one is taken down and replayed."""
    return iterations >= _REPEATS_FROM


class PlannedStep:
    """The step that a job is planned for.  Used by the job's thread only."""

    def __init__(
        self,
        job: Job,
        step: CapturedStep,
        memory: JobMemory,
        averages: LatencyAverage,
        *,
        plan_version: int,
        tells_drift: bool = True,
        replay: bool = False,
    ) -> None:
        """Bind the step to the job's tensors.

        plan_version: of the newest plan of earlier attempts, or 0; tells_drift: has plans made anew where
        latencies drift; replay: takes settled iterations down, where the device can.
        """
        self._tells_drift = tells_drift
        self._replay = replay
        self.step = step
        self.order: PlanOrder | None = None
        self.highest_peak_nbytes = 0
        self._job = job
        self._memory = memory
        self._averages = averages
        #: As it runs: with what the plan packs and splits.
        self._running = step
        self._rewriting = Rewriting()
        self._executor = self._bind(step)
        self._version = plan_version
        self._sampling = Sampling()
        self._adopted_now = False
        self._may_drift_from = time.monotonic()
        self._write_latencies_at = time.monotonic()
        #: Of this epoch's iterations by the plan in force.
        self._peak_nbytes = 0

    @property
    def version(self) -> int:
        """Of the newest plan."""
        return self._version

    def adopt(self, order: PlanOrder, *, iteration: int) -> None:
        """Take up a plan with this iteration (from 1), as soon as there is room.  Raises Stopped."""
        self._job.turn.end()
        # What was held by the plan before is none of this one's.
        self._end_peak(iteration - 1)
        self._rewrite_as(order.job_plan.plan.rewriting)
        self._job.turn.change(order.share)
        self._version += 1
        self._adopted_now = True
        self._may_drift_from = time.monotonic() + max(_DRIFT_PAUSE_S, 20 * order.planning_ns / 1e9)
        self._averages.planned(order.latencies_ns)
        self._sampling.planned()
        self.order = order
        version, fence, graph = self._version, self._job.records.fence, self._running.graph
        captured = self._job.described(self.step.graph.digest)

        def write(conn: Connection) -> None:
            # It may be gone by now: a graph without plans is anybody's to delete.
            captured.ensure(conn)
            if graph is not captured.graph:
                captured.ensure_rewritten(conn, graph)
            plans.add(
                conn,
                fence,
                order.job_plan,
                version=version,
                graph=graph,
                captured_digest=captured.graph.digest,
                reason=order.reason,
                budget_nbytes=order.budget_nbytes,
                planning_ns=order.planning_ns,
                adopted_at_iteration=iteration,
            )

        self._job.records.later(write)
        said = order.job_plan.prediction
        self._job.records.note(
            planned_peak_nbytes=said.peak_nbytes,
            guaranteed_peak_nbytes=said.guaranteed_peak_nbytes,
            budget_nbytes=order.budget_nbytes,
        )
        self._job.tell_peak("vanilla_peak_nbytes", said.vanilla_peak_nbytes)
        self._job.post(PlanAdopted(job=self._job.id, planning=order.planning))

    def at_boundary(self, *, iteration: int, left: int) -> None:
        """Between iterations: stop if told to, take up a newer plan if there is one, wait for a turn.

        iteration: the next one, from 1; left: how many there are to come, with it.  Raises Stopped.
        """
        self.take_up_plan(iteration=iteration)
        while not self._take_turn(left):
            self.take_up_plan(iteration=iteration)

    def take_up_plan(self, *, iteration: int) -> None:
        """Stop if told to, take up a newer plan if there is one; iteration: the next one.  Raises Stopped."""
        self._job.check()
        order = self._job.mailbox.take_order()
        if order is not None:
            self.adopt(order, iteration=iteration)
        confirmation = self._job.mailbox.take_confirmation()
        if confirmation is not None:
            self._averages.planned(confirmation.latencies_ns)
            self._job.turn.last(confirmation.iterations)

    def _take_turn(self, left: int) -> bool:
        assert self.order is not None
        plan = self.order.job_plan
        return self._job.turn.take(self._executor, plan.program, left_ns=left * plan.prediction.time_ns)

    def run(self, batch: Batch, *, iteration: int, update: int = 1) -> IterationResult:
        """Run one iteration (from 1), in the turn that the job has; update: as in Executor.run_iteration.

        Raises Stopped where the job must break off, KernelFailed.
        """
        sampled = self._sampling.count(replaying=self._executor.is_replaying)
        begin_ns = time.perf_counter_ns()
        try:
            result = self._executor.run_iteration(batch, update, sample_latencies=sampled)
        except JobCancelled:
            raise self._job.break_off_reason() from None
        # Not `elapsed_ns`: taking down, which is none of the device's time, is part of what a sample costs.
        self._sampling.took(time.perf_counter_ns() - begin_ns, replayed=result.replayed)
        self._job.used_device(result.elapsed_ns)
        self._job.turn.ran(result.elapsed_ns)
        if result.latencies_ns is not None:
            self._sample(result.latencies_ns, iteration)
        self._peak_nbytes = max(self._peak_nbytes, result.peak_nbytes)
        if self._adopted_now or result.peak_nbytes > self.highest_peak_nbytes:
            self._record_peak(result.peak_nbytes, iteration)
        self._adopted_now = False
        return result

    def end_epoch(self, *, iteration: int) -> None:
        """Record what an epoch held at most, by each of its plans."""
        self._end_peak(iteration)
        self._record_latencies(iteration)

    def _end_peak(self, iteration: int) -> None:
        if self._peak_nbytes:
            self._record_peak(self._peak_nbytes, iteration)
        self._peak_nbytes = 0

    def close(self) -> None:
        """Free what the step holds beyond the persistent tensors, also after an iteration broke off."""
        self._executor.close()

    def _rewrite_as(self, rewriting: Rewriting) -> None:
        """Run the step rewritten like this from the next iteration on."""
        if rewriting == self._rewriting:
            return
        self._executor.close()
        self._running = planned_step(self.step, rewriting, self._memory.device.torch_device)
        self._rewriting = rewriting
        self._executor = self._bind(self._running)

    def _bind(self, step: CapturedStep) -> Executor:
        return Executor(
            step,
            self._memory,
            should_stop=self._job.must_break_off,
            replay=self._replay,
            tell=self._tell_replay,
        )

    def _tell_replay(self, what: str, detail: Mapping[str, object]) -> None:
        """Leave a row that says whether iterations by this plan are replayed, and if not, why."""
        job, said = self._job.id, {"plan_version": self._version, **detail}
        self._job.records.later(lambda conn: events.add(conn, job, what, said))

    def _sample(self, measured_ns: Sequence[int], iteration: int) -> None:
        # Averages are of captured ops, whichever way a plan rewrites them.
        graph, spec = self.step.graph, self._memory.device.spec
        measured_ns = captured_latencies_ns(graph, self._rewriting, measured_ns, spec)
        self._averages.sample(measured_ns)
        if self._averages.surprise() > _SURPRISE:
            # One sample alone, taken in with a part of its weight, is no drift yet.
            self._sampling.soon()
        now = time.monotonic()
        if self._tells_drift and now >= self._may_drift_from and self._averages.drift() > DRIFT_THRESHOLD:
            self._may_drift_from = now + _DRIFT_PAUSE_S
            self._job.post(DriftDetected(job=self._job.id))
        if now >= self._write_latencies_at:
            self._record_latencies(iteration)

    def _record_latencies(self, iteration: int) -> None:
        self._write_latencies_at = time.monotonic() + _WRITE_LATENCIES_EVERY_S
        averages, version, fence = self._averages, self._version, self._job.records.fence
        latest_ns, average_ns = averages.latest_ns, averages.average_ns
        self._job.records.later(
            lambda conn: latencies.write(
                conn,
                fence,
                plan_version=version,
                iteration=iteration,
                latest_ns=latest_ns,
                average_ns=average_ns,
                predicted_ns=averages.predicted_ns,
            )
        )

    def _record_peak(self, peak_nbytes: int, iteration: int) -> None:
        assert self.order is not None
        self.highest_peak_nbytes = max(self.highest_peak_nbytes, peak_nbytes)
        said, version, fence = self.order.job_plan.prediction, self._version, self._job.records.fence
        device_peak_nbytes = self._memory.device.memory.peak_nbytes
        self._job.records.later(
            lambda conn: metrics.add_peak(
                conn,
                fence,
                plan_version=version,
                iteration=iteration,
                peak_nbytes=peak_nbytes,
                planned_peak_nbytes=said.peak_nbytes,
                guaranteed_peak_nbytes=said.guaranteed_peak_nbytes,
                device_peak_nbytes=device_peak_nbytes,
            )
        )
        self._job.tell_peak("measured_peak_nbytes", self.highest_peak_nbytes)
