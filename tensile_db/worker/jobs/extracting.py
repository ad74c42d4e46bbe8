"""The first stage of a training with a frozen backbone: what it makes of each row is made once.

The epochs then train the head alone, on what is kept, with far less memory.  The results are those of the
whole step, bit for bit, where what is made of a row does not depend on the rows beside it; the first batch is
made twice, its rows in another order, to see whether that is so.

Source: ours.
"""

import hashlib
import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from io import BufferedWriter
from pathlib import Path

import numpy as np
import torch

from tensile_db.capture.frozen_steps import FrozenSteps
from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import events
from tensile_db.data.prefetcher import Prefetcher
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.worker.execution.binding import Batch
from tensile_db.worker.handover import PlannerInput
from tensile_db.worker.jobs.backbone_features import BackboneFeatures, Bytes, row_nbytes, to_bytes
from tensile_db.worker.jobs.caches import locked
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.network import Network, epochs_of
from tensile_db.worker.jobs.planned_step import PlannedStep

log = logging.getLogger(__name__)

#: Of the disk's free space, what one job's features may take: others have jobs, too.
_SHARE_OF_DISK = 0.5


class _NotKept(Exception):
    """The features cannot be kept, for a reason.

    plan_version: of the newest plan by which that was found out, or 0.
    """

    def __init__(self, reason: str, *, plan_version: int = 0) -> None:
        super().__init__(reason)
        self.plan_version = plan_version


def steps_if_worth_it(network: Network) -> FrozenSteps | None:
    """Return a training's steps, where making features once saves anything; None: it does not.

    Images that are augmented change from epoch to epoch, and one epoch alone goes over them once anyway.
    Columns take less time than it takes to read what would be made of them.
    """
    job, rows = network.job, network.rows
    if not network.is_frozen or len(rows.input_shape) != 3 or job.row.options.get("augmentation"):
        return None
    if epochs_of(job.row) == 1 and not job.shares_folder:
        return None
    return network.frozen_steps()


def extract(
    network: Network, steps: FrozenSteps, state: Mapping[str, torch.Tensor], *, plan_version: int
) -> tuple[BackboneFeatures | None, int]:
    """Return the features of all rows, and the newest plan's version; None: they cannot be kept.

    state: of the whole training, on the host, by name.  plan_version: of the newest plan so far, or 0.
    What an attempt has made, those that come after it on this machine take up, and trials of one search each
    other's.  Raises Stopped, DoesNotFit, LostLease.
    """
    job = network.job
    path = job.folder / _file_name(network, steps.backbone, state)
    if not path.exists():
        try:
            with _alone(job, path):
                if not path.exists():
                    plan_version = _make(network, steps, state, path, plan_version=plan_version)
        except _NotKept as refusal:
            said = {"reason": str(refusal)}
            log.info("job %s goes over its images in each epoch: %s", job.id, refusal)
            job.records.later(lambda conn: events.add(conn, job.id, "features_not_kept", said))
            return None, refusal.plan_version or plan_version
    return BackboneFeatures(path, steps.features), plan_version


def planner_input(job: Job, step: CapturedStep, averages: LatencyAverage) -> PlannerInput:
    """Return what the planner has to know of a step of a training."""
    row = job.row
    return PlannerInput(
        graph=step.graph,
        latencies=averages,
        policy=row.policy,
        max_swapping_rate=float(row.options.get("max_swapping_rate", 1.0)),
        memory_limit_nbytes=row.memory_limit_nbytes,
    )


def _file_name(network: Network, step: CapturedStep, state: Mapping[str, torch.Tensor]) -> str:
    """Return the name of the file, by all that decides what is in it."""
    rows, setting = network.rows, network.job.setting
    digest = hashlib.sha256()
    what = (rows.digest, rows.features, step.calls, setting.hardware, setting.threads)
    digest.update(repr(what).encode())
    for name in sorted(step.state):
        digest.update(state[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return f"backbone-{digest.hexdigest()[:16]}.features"


def _alone(job: Job, path: Path) -> AbstractContextManager[None]:
    """Keep other trials from making the same file; those that read rows need not wait for it."""
    if not job.shares_folder:
        return nullcontext()
    return locked(job.folder, job.check, name=f"{path.name}.lock")


def _make(
    network: Network,
    steps: FrozenSteps,
    state: Mapping[str, torch.Tensor],
    path: Path,
    *,
    plan_version: int,
) -> int:
    """Write the file; return the newest plan's version.  Raises _NotKept."""
    job, nbytes = network.job, row_nbytes(steps.features)
    part = path.with_suffix(".part")
    left_nbytes = network.rows.count * nbytes - (part.stat().st_size if part.exists() else 0)
    if left_nbytes > _SHARE_OF_DISK * shutil.disk_usage(job.folder).free:
        raise _NotKept(f"the disk has no room for {left_nbytes} bytes of features")
    step = job.with_workspaces_of_parts(steps.backbone)
    network.describe(step)
    averages = LatencyAverage(job.predict(step))
    order = job.admit(planner_input(job, step, averages), phase="extracting")
    own = {name: state[name] for name in step.state}
    failure: OSError | _NotKept | None = None
    with job.on_device(order, state=own, seed=0) as memory:
        planned = PlannedStep(job, step, memory, averages, plan_version=plan_version)
        try:
            planned.adopt(order, iteration=1)
            with part.open("ab") as file:
                _write(network, planned, file, nbytes)
        except (OSError, _NotKept) as error:
            failure = error
        finally:
            planned.close()
    job.end_stage()
    if failure is not None:
        part.unlink(missing_ok=True)
        raise _NotKept(str(failure), plan_version=planned.version) from failure
    part.rename(path)
    said = {"bytes": path.stat().st_size}
    job.records.later(lambda conn: events.add(conn, job.id, "features_kept", said))
    return planned.version


def _write(network: Network, planned: PlannedStep, file: BufferedWriter, nbytes: int) -> None:
    """Append what is missing, in whole batches but for the last; nbytes: of a row."""
    job, count, size = network.job, network.rows.count, network.rows.batch_size
    first = file.tell() // (nbytes * size)
    file.truncate(first * nbytes * size)
    total, began_s = -(-count // size), time.monotonic()
    job.records.progress(iterations_total=total)
    with closing(Prefetcher(lambda: _batches(network, first * size))) as batches:
        for number, batch in enumerate(batches, start=first + 1):
            planned.at_boundary(iteration=number, left=total - number + 1)
            made = to_bytes(planned.run(batch, iteration=number).outputs)
            if number == first + 1:
                _require_rows_apart(planned, batch, made, iteration=number)
            file.write(made[: count - (number - 1) * size].data)
            rows_a_second = (number - first) * size / max(time.monotonic() - began_s, 1e-9)
            job.records.progress(iteration=number, samples_per_second=rows_a_second)
    file.flush()
    job.turn.end()
    planned.end_epoch(iteration=total)


def _batches(network: Network, first: int) -> Iterator[Batch]:
    """Yield the images of all rows from the first one on, in order; the last batch is padded."""
    count, size = network.rows.count, network.rows.batch_size
    for begin in range(first, count, size):
        yield network.rows.inputs.padded(np.arange(begin, min(begin + size, count)), size)


def _require_rows_apart(planned: PlannedStep, batch: Batch, made: Bytes, *, iteration: int) -> None:
    """Raise _NotKept where what is made of rows depends on where they are in the batch, or on the others."""
    images, *rest = batch
    again = to_bytes(planned.run((np.roll(images, 1, axis=0), *rest), iteration=iteration).outputs)
    if not np.array_equal(np.roll(made, 1, axis=0), again):
        raise _NotKept("what the backbone makes of an image depends on those beside it")
