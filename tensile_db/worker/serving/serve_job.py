"""Jobs that serve a model: rows of all sessions, one at a time for them, go forward together.

Such a job begins with the first row that is asked for (sql/functions/serving_triggers.sql), takes turns on
the device like any other, a batch each, and ends when nobody has asked for long.

Source: Salus section 3.2 (inference jobs as sessions of their own beside training), with batching as in
serving systems.
"""

import time

import numpy as np
from sqlalchemy import Connection

from tensile_db.catalog import jobs
from tensile_db.catalog import serving as requests
from tensile_db.catalog.models import ModelRow
from tensile_db.catalog.serving import Request
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.one_row import features_of_row
from tensile_db.data.target_scaling import TargetScaling
from tensile_db.errors import InvalidRequest
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.scheduler.sharing.serving import LATELY_NS
from tensile_db.worker.execution.executor import IterationResult
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.handover import PlannerInput
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.model_use import find_model, read_state, record_step, scaling_of, spec_of
from tensile_db.worker.jobs.planned_step import PlannedStep
from tensile_db.worker.mailbox import PlanOrder
from tensile_db.worker.messages import UseChanged
from tensile_db.worker.serving.answers import answers_for
from tensile_db.worker.serving.batch_sizes import BatchSize, BatchSizes
from tensile_db.worker.serving.inbox import Inbox

#: A job that is never without work still says how far it is, this often.
_TELL_EVERY_S = 10.0
#: What is left to tell is told this long after the last row.
_TELL_AFTER_S = 0.5
_LONGEST_WAIT_S = 30.0


def run_serving(job: Job) -> None:
    """Serve the job's model until nobody asks for it any more."""
    serving = job.setting.serving
    job.enter("reading")
    model = find_model(job)
    spec, scaling = spec_of(model), scaling_of(model)

    def make(request: Request) -> np.ndarray | None:
        if request.wants_probabilities and model.classes is None:
            raise InvalidRequest(
                f'the model "{model.name}" predicts a number, which has no probabilities',
                hint="Use tensile_predict.",
            )
        return features_of_row(spec, request.form, request.features)

    def wake() -> None:
        job.mailbox.wake()
        serving.preparations.look()

    inbox = Inbox(model.id, make, wake)
    serving.postman.open(inbox)
    try:
        _serve(job, model, spec, scaling, inbox)
    finally:
        serving.postman.close(inbox)


def _serve(job: Job, model: ModelRow, spec: FeatureSpec, scaling: TargetScaling | None, inbox: Inbox) -> None:
    job.enter("capturing")
    row, serving = job.row, job.setting.serving
    batch_size = row.batch_size or serving.batch_size
    capture = serving.steps.of(model, spec.input_shape, job.setting.device.torch_device)
    with serving.preparations.one_of(inbox.oldest_request, job.check):
        step = job.with_workspaces(capture(batch_size))
        record_step(job, model, step, batch_size=batch_size, input_shape=spec.input_shape)
        state, plan_version = read_state(job, model)
    averages = LatencyAverage(job.predict(step))
    order = job.admit(
        PlannerInput(
            graph=step.graph,
            latencies=averages,
            policy=row.policy,
            max_swapping_rate=1.0,
            memory_limit_nbytes=row.memory_limit_nbytes,
            unused_ns=inbox.unused_ns,
        ),
        phase="serving",
    )
    with job.on_device(order, state=state, seed=0, keeps_host=True) as memory:
        del state
        largest = PlannedStep(job, step, memory, averages, plan_version=plan_version, tells_drift=False)
        sizes = BatchSizes(job, memory, capture, serving.background, largest=batch_size)
        try:
            largest.adopt(order, iteration=1)
            _Service(job, inbox, memory, largest, sizes, batch_size=batch_size).run(model, scaling)
        finally:
            job.turn.let_go()
            sizes.close()
            largest.close()


class _Service:
    """A model on the device.  Used by the job's thread only."""

    def __init__(
        self,
        job: Job,
        inbox: Inbox,
        memory: JobMemory,
        largest: PlannedStep,
        sizes: BatchSizes,
        *,
        batch_size: int,
    ) -> None:
        self._job = job
        self._inbox = inbox
        self._memory = memory
        self._largest = largest
        self._sizes = sizes
        self._batch_size = batch_size
        self._began_s = time.monotonic()
        self._batches = 0
        self._rows = 0
        #: Turns that the model's state was brought in for, and how many bytes that was.
        self._moves = 0
        self._moved_nbytes = 0
        self._told_batches = 0
        #: The newest plans were asked for as one that nobody uses.
        self._told_unused = False
        self._tell_at = self._began_s

    def run(self, model: ModelRow, scaling: TargetScaling | None) -> None:
        """Answer until nobody asks; then end the job.  Raises Stopped."""
        while True:
            self._largest.take_up_plan(iteration=self._batches + 1)
            self._sizes.take_up()
            if len(self._inbox):
                self._go_forward(model, scaling)
            elif self._rest():
                return

    def _go_forward(self, model: ModelRow, scaling: TargetScaling | None) -> None:
        size = self._sizes.find(len(self._inbox))
        brought_nbytes = self._job.turn.brought_nbytes
        if not self._begin(size):
            return
        # More may have come while it waited for its turn.
        better = self._sizes.find(len(self._inbox))
        if better is not size and not self._begin(better):
            return
        # What lingered may have left while it waited.
        moved_nbytes = self._job.turn.brought_nbytes - brought_nbytes
        self._moves += moved_nbytes > 0
        self._moved_nbytes += moved_nbytes
        rows = self._inbox.take(self._batch_size if better is None else better.rows)
        count = self._batch_size if better is None else better.rows
        features = np.stack([row.features for row in rows] + [rows[-1].features] * (count - len(rows)))
        result = self._run(better, features)
        answers = answers_for(rows, result.outputs["logits"], model.classes, scaling)
        self._job.setting.serving.postman.answer(answers)
        self._batches += 1
        self._rows += len(rows)
        self._tell_use(has_changed=(moved_nbytes > 0 and not self._stays) or self._told_unused)
        if time.monotonic() >= self._tell_at + _TELL_EVERY_S:
            self._job.turn.linger()
            self._tell()

    def _begin(self, size: BatchSize | None) -> bool:
        """Wait for a turn; False: there is something else to do first.  Raises Stopped."""
        if size is not None:
            return size.begin()
        self._largest.at_boundary(iteration=self._batches + 1, left=1)
        return True

    def _run(self, size: BatchSize | None, features: np.ndarray) -> IterationResult:
        if size is not None:
            return size.run((features,))
        return self._largest.run((features,), iteration=self._batches + 1)

    @property
    def _stays(self) -> bool:
        """Whether the model's state stays on the device between its turns."""
        order: PlanOrder | None = self._largest.order
        return order is None or order.share.resident_nbytes > 0

    def _tell_use(self, *, has_changed: bool) -> None:
        """Have plans made that keep the model on the device where it is used, and others where it is not."""
        if has_changed and self._job.setting.serving.use.is_time():
            self._told_unused = self._inbox.unused_ns() >= LATELY_NS
            self._job.post(UseChanged(job=self._job.id))

    def _rest(self) -> bool:
        """Wait for something to do; True: the job has come to its end.  Raises Stopped."""
        job = self._job
        job.turn.linger()
        self._sizes.prepare_next(job.mailbox.wake)
        now = time.monotonic()
        wait_s = self._inbox.last_used_s + job.setting.serving.idle_s - now
        if wait_s <= 0 and self._end():
            return True
        if self._told_batches != self._batches:
            if now >= self._tell_at:
                self._tell()
            wait_s = min(wait_s, _TELL_AFTER_S)
        unused_from_s = self._inbox.last_used_s + LATELY_NS / 1e9
        # Whoever tells lets the use of all models be looked at.
        self._told_unused = self._told_unused or job.setting.serving.use.last_s >= unused_from_s
        if not self._told_unused:
            self._tell_use(has_changed=now >= unused_from_s)
            wait_s = min(wait_s, max(unused_from_s - now, 1.0))
        job.mailbox.wait_for_news(
            min(max(wait_s, 0.01), _LONGEST_WAIT_S), lambda: len(self._inbox) or self._sizes.has_news
        )
        return False

    def _tell(self) -> None:
        now = time.monotonic()
        self._tell_at = now + _TELL_AFTER_S
        self._told_batches = self._batches
        self._job.records.note(
            iteration=self._batches,
            rows_total=self._rows,
            samples_per_second=self._rows / max(now - self._began_s, 1e-9),
            result=self._result(),
        )
        self._job.records.flush()

    def _result(self) -> dict[str, int | float]:
        return {
            "rows": self._rows,
            "batches": self._batches,
            "seconds": time.monotonic() - self._began_s,
            "moves": self._moves,
            "moved_nbytes": self._moved_nbytes,
        }

    def _end(self) -> bool:
        """End the job unless a row has been asked for meanwhile; return whether it has ended."""
        fence, model = self._job.records.fence, self._inbox.model
        result = self._result()

        def end(conn: Connection) -> bool:
            if requests.is_waited_for(conn, model):
                return False
            jobs.succeed(conn, fence, result)
            return True

        self._largest.end_epoch(iteration=self._batches)
        ended = self._job.records.must(end)
        if not ended:
            self._inbox.last_used_s = time.monotonic()
            # It may never have been told of.
            self._job.setting.serving.postman.open(self._inbox)
        return ended
