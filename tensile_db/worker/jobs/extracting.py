"""The first stage of a training with a frozen backbone: the features that it makes of each row, made once.

The epochs then train the head alone, on these, with far less memory.  The results are the bits of eager
PyTorch's that does the same: makes features in batches of as many rows, in the rows' order, then trains on
them.  They are those of the whole step, too, as long as no kernel rounds by a row's place in its batch, as
vectorised exponentials do at an array's end.  The first batch is made twice, with other rows beside half of
them and all of them elsewhere, to see whether rows depend on each other otherwise.

Source: ours.
"""

import hashlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from tensile_db.capture.frozen_steps import BackboneFeature, FrozenSteps
from tensile_db.capture.step import CapturedStep
from tensile_db.capture.step_digest import step_digest
from tensile_db.catalog import events
from tensile_db.data.prefetcher import Prefetcher
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.scheduler.policies import vanilla
from tensile_db.worker.execution.binding import Batch
from tensile_db.worker.jobs import checkpoints
from tensile_db.worker.jobs.backbone_features import (
    BackboneFeatures,
    Bytes,
    DiskFull,
    FeatureFile,
    from_bytes,
    to_bytes,
)
from tensile_db.worker.jobs.caches import locked
from tensile_db.worker.jobs.network import Network, epochs_of, planner_input
from tensile_db.worker.jobs.planned_step import PlannedStep, repeats
from tensile_db.worker.mailbox import Stopped

log = logging.getLogger(__name__)

#: Bytes of features that are written together.
_WRITTEN_NBYTES = 2**22


class _RowsDepend(Exception):
    """What the backbone makes of a row depends on the rows beside it, by more than rounding."""


class _Held(Exception):
    """Somebody else has the lock."""


@dataclass(frozen=True, kw_only=True)
class Extracted:
    """What came of the first stage."""

    #: None: they cannot be kept, and each epoch has to go over the rows.
    features: BackboneFeatures | None
    #: Of the newest plan so far, or 0.
    plan_version: int


def stages_of(network: Network) -> FrozenSteps | None:
    """Return the steps of a training's two stages; None where it has one, for features are not made once.

    Images that are augmented change from epoch to epoch.  In a single epoch each is gone over once anyway,
    unless other trials go over the same.  Reading the features of a row of columns takes longer than making
    them.
    """
    job, rows = network.job, network.rows
    if not network.is_frozen or len(rows.input_shape) != 3 or job.row.options.get("augmentation"):
        return None
    if epochs_of(job.row) == 1 and not job.shares_folder:
        return None
    if job.row.policy == "auto_exact":
        # It stands for the whole step's bits.
        return None
    return network.frozen_steps()


def extract(
    network: Network, steps: FrozenSteps, state: Mapping[str, torch.Tensor], *, plan_version: int
) -> Extracted:
    """Run the first stage, unless its file is there: of an earlier attempt on this machine, or of a trial.

    state: of the whole training, on the host, by name.  plan_version: of the newest plan so far, or 0.
    The job is not on the device before, nor after.  Raises Stopped, DoesNotFit, LostLease.
    """
    job = network.job
    path = job.folder / _file_name(network, steps.backbone, state)
    # A trial that finds the file would seem small to whoever places others like it.
    job.held_before(vanilla_peak_nbytes=vanilla.peak_nbytes(steps.backbone.graph))
    try:
        with locked(job.folder, job.check if job.shares_folder else _give_up, name=f"{path.name}.lock"):
            return _extract(network, steps, state, path, plan_version)
    except _Held:
        # An attempt that was taken for dead has yet to hear of it, or never will.
        own = path.with_name(f"{path.name}.{job.row.attempt}")
        return _extract(network, steps, state, own, plan_version)


def _give_up() -> None:
    raise _Held


def _extract(
    network: Network, steps: FrozenSteps, state: Mapping[str, torch.Tensor], path: Path, plan_version: int
) -> Extracted:
    """Run the first stage, where nobody else writes that file, unless it is there."""
    job, count = network.job, network.rows.count
    file = FeatureFile(path, steps.features, count=count)
    if file.is_whole:
        job.recall_peak()
    else:
        try:
            batches = file.begin(network.rows.batch_size)
        except DiskFull as full:
            return _not_kept(network, full, plan_version)
        plan_version, refusal = _run(network, steps, state, file, batches, plan_version)
        # Others may have the memory while the disk is written.
        job.end_stage()
        if refusal is None:
            refusal = _finish(file)
        else:
            file.remove()
        job.begin_stage()
        if refusal is not None:
            return _not_kept(network, refusal, plan_version)
        detail = {"bytes": path.stat().st_size}
        job.records.later(lambda conn: events.add(conn, job.id, "features_kept", detail))
    return Extracted(features=BackboneFeatures(path, steps.features, count=count), plan_version=plan_version)


def _not_kept(network: Network, refusal: Exception, plan_version: int) -> Extracted:
    job, detail = network.job, {"reason": str(refusal)}
    log.info("job %s goes over its rows in each epoch: %s", job.id, refusal)
    job.records.later(lambda conn: events.add(conn, job.id, "features_not_kept", detail))
    return Extracted(features=None, plan_version=plan_version)


def _file_name(network: Network, step: CapturedStep, state: Mapping[str, torch.Tensor]) -> str:
    """Return the name of the file, by all that decides what is in it."""
    rows, setting = network.rows, network.job.setting
    digest = hashlib.sha256()
    what = (rows.digest, rows.features, step_digest(step), setting.hardware, setting.threads)
    digest.update(repr(what).encode())
    for stored in checkpoints.to_stored({name: state[name] for name in step.state}):
        digest.update(stored.data.data)
    return f"backbone-{digest.hexdigest()[:16]}.features"


def _run(
    network: Network,
    steps: FrozenSteps,
    state: Mapping[str, torch.Tensor],
    file: FeatureFile,
    batches: int,
    plan_version: int,
) -> tuple[int, Exception | None]:
    """Make the features of all rows behind so many batches; return the newest plan's version.

    And why they cannot be kept, if so.  Raises Stopped, DoesNotFit, LostLease.
    """
    job = network.job
    step = job.with_workspaces_of_parts(steps.backbone)
    network.describe(step)
    averages = LatencyAverage(job.predict(step))
    is_replayed = repeats(_batches_of(network) - batches)
    asked = replace(planner_input(job, step, averages), repeats=is_replayed)
    order = job.admit(asked, phase="extracting")
    of_backbone = {name: state[name] for name in step.state}
    with job.on_device(order, state=of_backbone, seed=0) as memory:
        planned = PlannedStep(job, step, memory, averages, plan_version=plan_version, replay=is_replayed)
        refusal: Exception | None = None
        try:
            planned.adopt(order, iteration=1)
            _write(network, planned, steps.features, file, batches)
        except (DiskFull, _RowsDepend) as error:
            refusal = error
        finally:
            planned.close()
    return planned.version, refusal


def _finish(file: FeatureFile) -> DiskFull | None:
    """Give the file its name; return why it cannot be kept, if so."""
    try:
        file.finish()
    except DiskFull as error:
        file.remove()
        return error
    return None


def _write(
    network: Network,
    planned: PlannedStep,
    kinds: Sequence[BackboneFeature],
    file: FeatureFile,
    done: int,
) -> None:
    """Append the features of the rows behind so many batches.  Raises DiskFull, _RowsDepend."""
    job, size = network.job, network.rows.batch_size
    total, began_s = _batches_of(network), time.monotonic()
    job.records.progress(iterations_total=total)
    unwritten: list[Bytes] = []
    with closing(Prefetcher(lambda: _batches(network, done * size))) as batches:
        for number, batch in enumerate(batches, start=done + 1):
            try:
                planned.at_boundary(iteration=number, left=total - number + 1)
                made = to_bytes(planned.run(batch, iteration=number).outputs)
            except Stopped:
                file.append(unwritten)
                raise
            if number == done + 1:
                # The turn may have gone with the iteration.
                planned.at_boundary(iteration=number, left=total - number + 1)
                _require_rows_apart(planned, kinds, batch, made, iteration=number)
            unwritten.append(made)
            if number == total or sum(each.nbytes for each in unwritten) >= _WRITTEN_NBYTES:
                file.append(unwritten)
                unwritten = []
            rows_a_second = (number - done) * size / max(time.monotonic() - began_s, 1e-9)
            job.records.progress(iteration=number, samples_per_second=rows_a_second)
    job.turn.end()
    planned.end_epoch(iteration=total)


def _batches_of(network: Network) -> int:
    """Return how many batches all rows are."""
    return -(-network.rows.count // network.rows.batch_size)


def _batches(network: Network, first: int) -> Iterator[Batch]:
    """Yield the images of all rows from the first one on, in order; the last batch is padded."""
    count, size = network.rows.count, network.rows.batch_size
    for begin in range(first, count, size):
        yield network.rows.inputs.padded(np.arange(begin, min(begin + size, count)), size)


def _require_rows_apart(
    planned: PlannedStep, kinds: Sequence[BackboneFeature], batch: Batch, made: Bytes, *, iteration: int
) -> None:
    """Raise _RowsDepend where rows come out otherwise a place further on, and with zeros for every second.

    By more than rounding: than the square root of their type's, of the largest number.
    """
    images, *rest = batch
    moved = np.roll(images, 1, axis=0)
    stay = np.arange(1, len(moved), 2) if len(moved) > 1 else np.arange(1)
    moved[np.setdiff1d(np.arange(len(moved)), stay)] = 0
    again = to_bytes(planned.run((moved, *rest), iteration=iteration).outputs)
    before = np.roll(made, 1, axis=0)
    for one, other in zip(from_bytes(before[stay], kinds), from_bytes(again[stay], kinds), strict=True):
        share = torch.finfo(one.dtype).eps ** 0.5 if one.is_floating_point() else 0.0
        largest = one.double().abs().max().item()
        if not torch.allclose(other.double(), one.double(), rtol=0.0, atol=share * largest, equal_nan=True):
            raise _RowsDepend("what the backbone makes of an image depends on those beside it")
