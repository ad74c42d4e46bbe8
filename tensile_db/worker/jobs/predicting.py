"""Predictions and evaluations: a trained model going forward over rows, by a plan like any other job."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from sqlalchemy import Connection

from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import jobs, predictions
from tensile_db.data.labels import label_text
from tensile_db.data.target_scaling import TargetScaling
from tensile_db.errors import BadData
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.worker.execution.binding import Batch
from tensile_db.worker.execution.job_memory import JobMemory
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.planned_step import PlannedStep, repeats
from tensile_db.worker.jobs.scores import Score, score_for
from tensile_db.worker.mailbox import PlanOrder

#: Predictions kept until they are written together, and numbers of these.
_ROWS_A_WRITE = 20_000
_NUMBERS_A_WRITE = 500_000

#: A prediction as it is written: place, row's name, class or number, its probability, that of each class.
PredictionRow = tuple[int, str | None, str, float | None, list[float] | None]

#: Features of rows, the last batch's padded; of the real rows what names each, None where nothing does, and
#: the targets, None where there are none to be compared with.
PredictingBatch = tuple[Batch, Sequence[str | None], np.ndarray | None]


class PredictingRows(Protocol):
    """The rows of a job that predicts or evaluates."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def batches(self) -> Iterator[PredictingBatch]:
        """Yield all of them, in order."""
        ...


@dataclass(frozen=True, kw_only=True)
class PredictingWork:
    """What such a job is about, once it is prepared."""

    step: CapturedStep
    rows: PredictingRows
    batch_size: int
    #: Labels in the order of the outputs; None for a number.
    classes: Sequence[Any] | None
    #: Of a number; None for classes.
    scaling: TargetScaling | None
    averages: LatencyAverage
    #: Parameters and buffers by name, on the host.
    state: dict[str, torch.Tensor]
    plan_version: int
    #: Whether the probability of each class is wanted, and not the likeliest one's alone.
    all_classes: bool = False

    @property
    def iterations(self) -> int:
        """Batches of all rows."""
        return -(-len(self.rows) // self.batch_size)

    @property
    def rows_a_write(self) -> int:
        """Rows whose predictions are written together."""
        numbers = len(self.classes or ()) if self.all_classes else 1
        return min(_ROWS_A_WRITE, max(1, _NUMBERS_A_WRITE // numbers))

    @property
    def repeats(self) -> bool:
        """Whether iterations are taken down and replayed; what was taken down may go with each write."""
        return repeats(min(self.iterations, self.rows_a_write // self.batch_size))


def predict(job: Job, work: PredictingWork, order: PlanOrder, memory: JobMemory) -> None:
    """Write a prediction for each row, then end the job."""
    fence = job.records.fence
    began_s = time.monotonic()
    # Those of an attempt before.
    job.records.must(lambda conn: predictions.remove(conn, fence))
    rows: list[PredictionRow] = []
    ordinal = 0
    most = work.rows_a_write
    for outputs, keys, _ in _outputs(job, work, order, memory):
        decoded = decode(outputs, work.classes, work.scaling)
        of_classes = outputs.double().softmax(dim=1).tolist() if work.all_classes else [None] * len(keys)
        for key, (prediction, probability), each in zip(keys, decoded, of_classes, strict=True):
            rows.append((ordinal, key, prediction, probability, each))
            ordinal += 1
        # A batch has few rows, which may have many classes.
        while len(rows) >= most:
            _write(job, rows[:most])
            rows = rows[most:]
    _write(job, rows)
    result = {"rows": ordinal, "seconds": time.monotonic() - began_s}
    job.records.must(lambda conn: jobs.succeed(conn, fence, result))


def evaluate(job: Job, work: PredictingWork, order: PlanOrder, memory: JobMemory) -> None:
    """Score the model on rows whose target is known, then end the job."""
    fence = job.records.fence
    began_s = time.monotonic()
    score: Score = score_for(work.scaling)
    for outputs, _, target in _outputs(job, work, order, memory):
        assert target is not None
        score.add(outputs, target)
    values = {name: value for name, value in score.values().items() if math.isfinite(value)}
    result = {"metrics": values, "rows": len(work.rows), "seconds": time.monotonic() - began_s}
    job.records.must(lambda conn: jobs.succeed(conn, fence, result, loss=values.get("loss")))


def decode(
    outputs: torch.Tensor, classes: Sequence[Any] | None, scaling: TargetScaling | None
) -> list[tuple[str, float | None]]:
    """Return the prediction as text, and its probability where it is a class, for each row of outputs.

    Numbers are in the target's own unit.
    """
    if scaling is not None:
        return [(text, None) for text in scaling.texts(outputs[:, 0].numpy())]
    assert classes is not None, "a model without classes predicts a number"
    probabilities = outputs.double().softmax(dim=1)
    likeliest, places = probabilities.max(dim=1)
    labels = [label_text(label) for label in classes]
    return [
        (labels[place], probability)
        for place, probability in zip(places.tolist(), likeliest.tolist(), strict=True)
    ]


def finite_rows(outputs: torch.Tensor) -> npt.NDArray[np.bool_]:
    """Return which rows of outputs hold finite numbers alone, shape (rows,)."""
    finite: npt.NDArray[np.bool_] = outputs.isfinite().all(dim=1).numpy()
    return finite


def not_finite(key: str | None) -> BadData:
    """Return the error of a row, named by its key where it has one, whose output is no number."""
    return BadData(
        f"the network's output{'' if key is None else f' for row {key}'} is NaN or infinite",
        hint="Leave out rows whose features are far from those of the training, or train the model again.",
    )


def _outputs(
    job: Job, work: PredictingWork, order: PlanOrder, memory: JobMemory
) -> Iterator[tuple[torch.Tensor, Sequence[str | None], np.ndarray | None]]:
    """Yield outputs, keys and targets of the real rows of each batch."""
    step = PlannedStep(
        job, work.step, memory, work.averages, plan_version=work.plan_version, replay=work.repeats
    )
    total = work.iterations
    began_s = time.monotonic()
    done = 0
    try:
        step.adopt(order, iteration=1)
        job.records.progress(iterations_total=total)
        for iteration, (features, keys, target) in enumerate(work.rows.batches(), start=1):
            step.at_boundary(iteration=iteration, left=total - iteration + 1)
            outputs = step.run(features, iteration=iteration).outputs["logits"][: len(keys)]
            bad = np.flatnonzero(~finite_rows(outputs))
            if len(bad):
                raise not_finite(keys[bad[0]])
            yield outputs, keys, target
            done += len(keys)
            job.records.progress(
                iteration=iteration, samples_per_second=done / max(time.monotonic() - began_s, 1e-9)
            )
        # What is left is to write, for which nobody need wait.
        job.turn.end()
        step.end_epoch(iteration=total)
    finally:
        step.close()


def _write(job: Job, rows: Sequence[PredictionRow]) -> None:
    # The database may be away for long.
    job.turn.end()
    write: Callable[[Connection], None] = partial(_copy, job, rows)
    job.records.must(write)


def _copy(job: Job, rows: Sequence[PredictionRow], conn: Connection) -> None:
    predictions.write(conn, job.records.fence, rows)
