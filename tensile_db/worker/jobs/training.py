"""The training loop: iterations by the newest plan, epochs' metrics, checkpoints, and the way back from one.

An iteration's number alone decides its batch, and the checkpoint has all the rest, so that an interrupted
training gives the bits of one that was not.
"""

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch

from tensile_db.capture.state import is_of_model
from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import metrics
from tensile_db.data.target_scaling import TargetScaling
from tensile_db.errors import NonFiniteLoss
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.worker.execution.binding import Batch
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs import checkpoints, early_stopping, losses
from tensile_db.worker.jobs.checkpoints import Checkpoint, CheckpointSchedule, Progress
from tensile_db.worker.jobs.forward_pass import ForwardPass
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.planned_step import PlannedStep
from tensile_db.worker.jobs.scores import score_for
from tensile_db.worker.mailbox import PlanOrder

#: Seconds over which the speed is averaged that the job's row tells.  The first iterations are slow: windows
#: begin short, and each is twice as long as the one before.
_FIRST_SPEED_WINDOW_S = 0.1
_SPEED_WINDOW_S = 5.0


#: Told an epoch's metrics by name, which one it is, from 1, and whether it is the last.
EpochEnded = Callable[[Mapping[str, float], int, bool], None]


class TrainingRows(Protocol):
    """The rows of a training job, as batches."""

    @property
    def batches_per_epoch(self) -> int:
        """Training batches of one epoch."""
        ...

    @property
    def validation_count(self) -> int:
        """Rows held out."""
        ...

    def training(self, first: int) -> Generator[Batch]:
        """Yield the batches of iterations `first` (from 1), `first + 1`, ... without end; to be closed."""
        ...

    def validation(self, batch_size: int) -> Iterator[tuple[Batch, np.ndarray]]:
        """Yield features of `batch_size` rows, the last ones padded, and the targets of the real rows."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainingWork:
    """What a training job is about, once it is prepared."""

    step: CapturedStep
    #: The network going forward for so many rows.
    capture_forward: Callable[[int], CapturedStep]
    rows: TrainingRows
    #: Digest of the rows read.
    rows_digest: str
    #: Of a target that is a number; None for classes.
    scaling: TargetScaling | None
    epochs: int
    batch_size: int
    seed: int
    averages: LatencyAverage
    checkpoint: Checkpoint | None
    #: Of the newest plan of earlier attempts, or 0.
    plan_version: int
    checkpoint_iterations: int | None
    checkpoint_seconds: float
    #: Epochs without a better one after which the training stops (early_stopping.py); None: it does not.
    patience: int | None = None
    #: Of an update, from 1; None: it stays.
    learning_rate: Callable[[int], float] | None = None
    #: May raise to end the training.
    after_epoch: EpochEnded | None = None

    @property
    def iterations(self) -> int:
        """Iterations in all."""
        return self.epochs * self.rows.batches_per_epoch


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a training."""

    #: The model's parameters and buffers by name, on the host.
    weights: Mapping[str, torch.Tensor]
    #: Those that are finite.
    metrics: Mapping[str, float]
    #: That were trained, and the one that weights and metrics are of.
    epochs: int
    epoch: int
    #: Time spent training, by all attempts.
    seconds: float


class Training:
    """One attempt at a training, in its job's thread."""

    def __init__(self, job: Job, work: TrainingWork, order: PlanOrder, memory: JobMemory) -> None:
        self._job = job
        self._work = work
        self._memory = memory
        self._progress = (
            Progress(rows=work.rows_digest) if work.checkpoint is None else work.checkpoint.progress
        )
        self._best_weights: Mapping[str, torch.Tensor] = (
            {} if work.checkpoint is None else work.checkpoint.best_weights
        )
        self._earlier_seconds = self._progress.seconds
        self._began_s = time.monotonic()
        self._step = PlannedStep(
            job, work.step, memory, work.averages, plan_version=work.plan_version, replay=True
        )
        self._step.adopt(order, iteration=self._progress.iteration + 1)
        self._forward = ForwardPass(job, memory, work.capture_forward, batch_size=work.batch_size)
        self._schedule = CheckpointSchedule(
            iterations=work.checkpoint_iterations, seconds=work.checkpoint_seconds
        )
        self._schedule.begin(self._progress.iteration)
        self._speed = _Speed(work.batch_size)

    def run(self) -> Trained:
        """Train to the end.

        Raises Stopped, after which `checkpoint` has where to go on, LostLease; NonFiniteLoss, unless there is
        a best epoch to keep.
        """
        self._forget_later_records()
        diverged = self._train_while_finite()
        self._job.turn.end()
        progress, epochs = self._progress, self._epochs_done()
        if progress.best_metrics is not None:
            # A search's session, which has many, is not told of each trial's.
            if progress.best_epoch < self._work.epochs and self._job.row.search_id is None:
                said = f"the model is of epoch {progress.best_epoch}, the best of {epochs} that were trained"
                self._job.notice(said if diverged is None else f"{diverged.message}: {said}. {diverged.hint}")
            weights, epoch, values = self._best_weights, progress.best_epoch, progress.best_metrics
        else:
            weights, epoch, values = self._memory.state(is_of_model), epochs, progress.metrics or {}
        if not self._work.rows.validation_count:
            losses.require_finite(weights)
        return Trained(
            weights=weights, metrics=values, epochs=epochs, epoch=epoch, seconds=self._now().seconds
        )

    def checkpoint(self) -> Checkpoint:
        """Return where the training is, in copies of its own; between iterations."""
        return Checkpoint(
            progress=self._now(),
            state=self._memory.state(),
            random_state=self._memory.random_state(),
            best_weights=self._best_weights,
        )

    def close(self) -> None:
        """Free what the steps hold, also after an iteration broke off."""
        self._forward.close()
        self._step.close()

    def _train_while_finite(self) -> NonFiniteLoss | None:
        """Train to the end; return what ended it before, where an epoch is the best and stays that."""
        try:
            self._validate_if_due()
            # Closed here, however it ends: a collection of garbage in any thread, which may hold a lock that
            # the thread ahead waits for, must not be what waits for that thread.
            with closing(self._work.rows.training(self._progress.iteration + 1)) as batches:
                while not self._is_over():
                    self._train_on(next(batches))
        except NonFiniteLoss as error:
            if self._progress.best_metrics is None:
                raise
            return error
        return None

    def _train_on(self, batch: Batch) -> None:
        self._step.at_boundary(
            iteration=self._progress.iteration + 1,
            left=self._work.iterations - self._progress.iteration,
        )
        self._iterate(batch)
        self._validate_if_due()
        if self._schedule.is_due(self._progress.iteration):
            self._save_checkpoint()

    def _iterate(self, batch: Batch) -> None:
        iteration = self._progress.iteration + 1
        result = self._step.run(batch, iteration=iteration, update=iteration - self._progress.skipped)
        epoch = self._epoch_of(iteration)
        when = f"iteration {iteration} (epoch {epoch})"
        ends_epoch = iteration % self._work.rows.batches_per_epoch == 0
        self._progress = replace(
            losses.after_iteration(self._progress, result.outputs, when=when), validated=not ends_epoch
        )
        self._job.records.progress(
            iteration=iteration,
            epoch=epoch,
            samples_per_second=self._speed.after_batch(),
            **losses.told_of(result.outputs),
        )

    def _validate_if_due(self) -> None:
        """Score the epoch that has just ended, if one has and it is not scored yet."""
        if self._progress.validated:
            return
        iteration = self._progress.iteration
        epoch = self._epoch_of(iteration)
        train_loss = losses.epoch_loss(self._progress, epoch=epoch)
        told = {"loss": train_loss, **losses.gradient_metrics(self._progress), **self._last_learning_rate()}
        self._add_metrics(epoch, "train", told)
        self._step.end_epoch(iteration=iteration)
        values: Mapping[str, float] = {}
        if self._work.rows.validation_count:
            self._job.records.progress(phase="validating")
            values = self._validate()
            self._add_metrics(epoch, "validation", values)
            self._job.records.progress(phase="training")
            self._speed.pause()
        found = {"train_loss": train_loss} | {f"validation_{name}": v for name, v in values.items()}
        self._progress = replace(
            self._progress,
            loss_sum=0.0,
            loss_count=0,
            validated=True,
            # JSON, as which they are kept, has no others.
            metrics=losses.finite(found),
        )
        if self._work.patience is not None:
            self._keep_if_best(found, epoch)
            self._speed.pause()
        is_last = self._is_over()
        if is_last and self._progress.best_metrics is None:
            losses.require_scored(values)
        if self._work.after_epoch is not None:
            self._work.after_epoch(found, epoch, is_last)

    def _last_learning_rate(self) -> Mapping[str, float]:
        """Return the newest update's learning rate as a metric; none where it stays, or before one."""
        update = self._progress.iteration - self._progress.skipped
        if self._work.learning_rate is None or not update:
            return {}
        return {"learning_rate": self._work.learning_rate(update)}

    def _keep_if_best(self, found: Mapping[str, float], epoch: int) -> None:
        progress = early_stopping.with_epoch(self._progress, found, epoch)
        if progress is not self._progress:
            self._best_weights = self._memory.state(is_of_model)
            self._progress = progress

    def _is_over(self) -> bool:
        """Whether no further iteration is made."""
        done = self._progress.iteration == self._work.iterations
        return done or early_stopping.is_over(self._progress, self._epochs_done(), self._work.patience)

    def _epochs_done(self) -> int:
        return self._progress.iteration // self._work.rows.batches_per_epoch

    def _validate(self) -> Mapping[str, float]:
        score = score_for(self._work.scaling)
        batch_size = self._forward.prepare()
        for batch, target in self._work.rows.validation(batch_size):
            while not self._forward.begin():
                # The others wait for what this job is to give back: now, not at the epoch's end.
                self._step.take_up_plan(iteration=self._progress.iteration + 1)
                if self._forward.prepare() != batch_size:
                    return self._validate()
            self._job.check()
            score.add(self._forward.run(batch)[: len(target)], target)
        self._job.turn.end()
        return score.values()

    def _add_metrics(self, epoch: int, split: str, values: Mapping[str, float]) -> None:
        fence, iteration = self._job.records.fence, self._progress.iteration
        finite = losses.finite(values)
        self._job.records.later(
            lambda conn: metrics.add(
                conn, fence, epoch=epoch, iteration=iteration, split=split, values=finite
            )
        )

    def _save_checkpoint(self) -> None:
        begin_s = time.monotonic()
        self._job.turn.end()
        checkpoints.save(self._job, self.checkpoint())
        self._schedule.made(self._progress.iteration, cost_s=time.monotonic() - begin_s)
        self._speed.pause()

    def _forget_later_records(self) -> None:
        """Remove what an earlier attempt recorded of iterations that come again."""
        fence, iteration = self._job.records.fence, self._progress.iteration
        # An epoch that has ended but is not validated is recorded again.
        last = iteration if self._progress.validated else iteration - 1
        if self._job.row.attempt > 1:
            digest = self._work.step.graph.digest
            self._job.records.must(
                lambda conn: metrics.forget_after(conn, fence, last, captured_digest=digest)
            )
        self._job.records.progress(
            iteration=iteration,
            iterations_total=self._work.iterations,
            epoch=self._epoch_of(iteration + 1),
        )

    def _now(self) -> Progress:
        return replace(self._progress, seconds=self._earlier_seconds + time.monotonic() - self._began_s)

    def _epoch_of(self, iteration: int) -> int:
        """Return the epoch, from 1, of an iteration, from 1."""
        return min((iteration - 1) // self._work.rows.batches_per_epoch + 1, self._work.epochs)


class _Speed:
    """Rows a second, lately, without the time of validations and checkpoints."""

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._resumed_s = time.monotonic()
        self._spent_s = 0.0
        self._batches = 0
        self._rows_per_s: float | None = None
        self._window_s = _FIRST_SPEED_WINDOW_S

    def after_batch(self) -> float | None:
        self._batches += 1
        self._spent_s += time.monotonic() - self._resumed_s
        self.pause()
        if self._spent_s > 0 and (self._spent_s >= self._window_s or self._rows_per_s is None):
            self._rows_per_s = self._batches * self._batch_size / self._spent_s
        if self._spent_s >= self._window_s:
            self._spent_s, self._batches = 0.0, 0
            self._window_s = min(2 * self._window_s, _SPEED_WINDOW_S)
        return self._rows_per_s

    def pause(self) -> None:
        """Leave out the time since the last batch."""
        self._resumed_s = time.monotonic()
