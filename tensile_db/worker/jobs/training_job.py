"""Jobs that train: from the request to a saved model, or, for an explanation, to the plan alone."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from sqlalchemy import Connection

from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import checkpoints as stored_checkpoints
from tensile_db.catalog import events, jobs, latencies, models, plans
from tensile_db.catalog.jobs import JobRow
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.shares import limit_of
from tensile_db.worker.jobs import checkpoints
from tensile_db.worker.jobs.backbone_features import BackboneFeatures
from tensile_db.worker.jobs.checkpoints import Checkpoint
from tensile_db.worker.jobs.extracting import extract, stages_of
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.network import Network, epochs_of, planner_input, prepare_network
from tensile_db.worker.jobs.rows import PreparedRows
from tensile_db.worker.jobs.training import EpochEnded, Trained, Training, TrainingWork
from tensile_db.worker.mailbox import Stopped
from tensile_db.worker.messages import MemoryFreed, StopReason
from tensile_db.worker.planning.explaining import explain
from tensile_db.worker.searching.trial import Trial, after_epoch, keeps_model, trial_of

log = logging.getLogger(__name__)

#: Unless the options say otherwise.
_CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class _Beginning:
    """Where a training begins, or goes on, and by which step."""

    captured: CapturedStep
    #: What a frozen backbone has made of the rows; None: the step goes over the rows themselves.
    features: BackboneFeatures | None
    checkpoint: Checkpoint | None
    #: Of the newest plan so far, or 0.
    plan_version: int
    #: Of all persistent tensors, on the host, by name; None: not worked out yet.
    state: dict[str, torch.Tensor] | None


def run_training(job: Job) -> None:
    """Train, and save the model."""
    network = prepare_network(job)
    trial = trial_of(job)
    beginning = _begin(job, network)
    network.forget_training()
    work = _work(job, network, beginning, after_epoch(job, trial))
    order = job.admit(planner_input(job, work.step, work.averages), phase="training")
    state = beginning.state or _first_state(network, beginning.checkpoint)
    del beginning
    left: Checkpoint | None = None
    with job.on_device(order, state=state, seed=work.seed) as memory:
        # The device's side and the host's are the job memory's now.
        del state
        if work.checkpoint is not None:
            memory.set_random_state(work.checkpoint.random_state)
        training = Training(job, work, order, memory)
        try:
            trained = training.run()
        except Stopped as stop:
            if stop.reason not in (StopReason.PAUSED, StopReason.SHUTDOWN):
                raise
            stopped, left = stop, training.checkpoint()
        finally:
            training.close()
    # What comes now may take long, and the others need not wait for that.
    job.post(MemoryFreed(job=job.id))
    if left is not None:
        job.records.later(lambda conn: events.add(conn, job.id, "memory_freed", {"attempt": job.row.attempt}))
        checkpoints.save(job, left)
        raise stopped
    _save(job, network.rows, trained, trial)


def run_explanation(job: Job) -> None:
    """Write what the plan would be as the job's result; in two stages, of the one that takes the memory."""
    network = prepare_network(job)
    captured, iterations = _explained(network)
    step, rows = job.with_known_workspaces(captured), network.rows
    network.describe(step)
    averages = LatencyAverage(job.predict(step))
    job.tell_planner(planner_input(job, step, averages))
    explanation = job.mailbox.wait_for_explanation()
    device = job.setting.device.spec
    explained = explain(
        explanation,
        step.graph,
        averages.average_ns,
        device,
        policy=job.row.policy,
        batch_size=rows.batch_size,
        iterations=iterations,
        limit_nbytes=limit_of(job.row, device.memory_nbytes),
    )
    job.records.must(lambda conn: jobs.succeed(conn, job.records.fence, {"rows": explained}))


def _explained(network: Network) -> tuple[CapturedStep, int]:
    """Return the step that a plan is explained of, and how often it is run."""
    rows = network.rows
    in_epochs = epochs_of(network.job.row) * rows.training_rows.batches_per_epoch
    frozen = stages_of(network)
    if frozen is None:
        return network.train_step(), in_epochs
    if vanilla.peak_nbytes(frozen.head.graph) > vanilla.peak_nbytes(frozen.backbone.graph):
        return frozen.head, in_epochs
    return frozen.backbone, -(-rows.count // rows.batch_size)


def _begin(job: Job, network: Network) -> _Beginning:
    """Come to where a training begins; with a frozen backbone, run the first stage."""
    checkpoint, plan_version = _left_by_earlier(job, network.rows)
    begin = partial(_Beginning, checkpoint=checkpoint)
    steps = stages_of(network)
    if steps is None:
        return begin(captured=network.train_step(), features=None, plan_version=plan_version, state=None)
    state = _first_state(network, checkpoint)
    extracted = extract(network, steps, state, plan_version=plan_version)
    features, plan_version = extracted.features, extracted.plan_version
    captured = network.train_step() if features is None else steps.head
    return begin(captured=captured, features=features, plan_version=plan_version, state=state)


def _left_by_earlier(job: Job, rows: PreparedRows) -> tuple[Checkpoint | None, int]:
    """Return what earlier attempts left: where to go on, and the newest plan's version, or 0."""
    row = job.row
    if row.attempt == 1:
        return None, 0
    checkpoint, plan_version = job.records.must(
        lambda conn: (checkpoints.load(conn, row.id), plans.newest_version(conn, row.id))
    )
    if checkpoint is not None and checkpoint.progress.rows != rows.digest:
        # Half a training on these rows and half on others is neither.
        log.warning("job %s starts anew: its rows have changed since its checkpoint", row.id)
        changed = {"iteration": checkpoint.progress.iteration, "reason": "the source's rows have changed"}
        job.records.later(lambda conn: events.add(conn, row.id, "restarted", changed))
        checkpoint = None
    return checkpoint, plan_version


def _first_state(network: Network, checkpoint: Checkpoint | None) -> dict[str, torch.Tensor]:
    """Return the values of all persistent tensors before the next iteration, by name, on the host."""
    return network.initial_state() if checkpoint is None else checkpoint.state


def _work(job: Job, network: Network, beginning: _Beginning, look: EpochEnded | None) -> TrainingWork:
    """Return what the epochs are about; look: told of each."""
    row, rows, features = job.row, network.rows, beginning.features
    step = job.with_workspaces_of_parts(beginning.captured)
    # Until the planner is asked, the graph is written and its latencies are predicted.
    network.describe(step)
    averages = LatencyAverage(job.predict(step))
    # An earlier attempt has measured these ops; on this worker's device, or on one of its kind.
    measured_ns = job.records.must(lambda conn: _measured_ns(conn, row, step.graph.digest))
    averages.sample([measured_ns.get(op.id) for op in step.graph.ops])
    forward_steps: dict[int, CapturedStep] = {}

    def capture_forward(batch_size: int) -> CapturedStep:
        if batch_size not in forward_steps:
            forward = network.forward_step(batch_size, None if features is None else features.kinds)
            forward_steps[batch_size] = job.with_workspaces(forward)
        return forward_steps[batch_size]

    return TrainingWork(
        step=step,
        capture_forward=capture_forward,
        rows=rows.training_rows if features is None else rows.training_rows.with_features(features),
        rows_digest=rows.digest,
        scaling=rows.scaling,
        epochs=epochs_of(row),
        batch_size=rows.batch_size,
        seed=row.seed,
        averages=averages,
        checkpoint=beginning.checkpoint,
        plan_version=beginning.plan_version,
        checkpoint_iterations=row.options.get("checkpoint_iterations"),
        checkpoint_seconds=float(row.options.get("checkpoint_seconds", _CHECKPOINT_SECONDS)),
        patience=row.options.get("patience"),
        learning_rate=None if network.optimizer.schedule is None else network.optimizer.learning_rate_of,
        after_epoch=look,
    )


def _measured_ns(conn: Connection, row: JobRow, captured_digest: str) -> Mapping[int, int]:
    """Return the latencies of a graph's ops that earlier attempts measured, by op id."""
    return {} if row.attempt == 1 else latencies.newest(conn, row.id, captured_digest)


def _save(job: Job, rows: PreparedRows, trained: Trained, trial: Trial | None) -> None:
    """Write the model and end the job, in one transaction; a trial's only if it is the best so far.

    Whoever wants the job paused, or its worker stopped, gets a model instead of a checkpoint.
    """
    if job.must_break_off():
        raise job.break_off_reason()
    job.records.progress(phase="saving")
    job.records.flush()

    def write(conn: Connection) -> None:
        result = {
            "loss": trained.metrics.get("train_loss"),
            "metrics": dict(trained.metrics),
            "seconds": trained.seconds,
            "epochs": trained.epochs,
            "epoch": trained.epoch,
        }
        model: dict[str, Any] = {}
        if keeps_model(conn, job, trial, trained.metrics):
            model_id, version = _add_model(conn, job.row, rows, trained)
            result["model_id"] = model_id
            model = {"model_id": model_id, "model_version": version}
        stored_checkpoints.remove_all(conn, job.records.fence)
        jobs.succeed(conn, job.records.fence, result, **model)

    job.records.must(write)


def _add_model(conn: Connection, row: JobRow, rows: PreparedRows, trained: Trained) -> tuple[int, int]:
    """Write the model; return its id and version."""
    return models.add(
        conn,
        name=row.model or row.architecture or "",
        owned_by=row.submitted_by,
        owner=row.owner,
        job=row.id,
        architecture=row.architecture or "",
        task=rows.task,
        classes=rows.classes,
        target_scaling=None if rows.scaling is None else rows.scaling.to_json(),
        features={**rows.features, "options": dict(row.options)},
        target=rows.target,
        parameter_nbytes=sum(weight.nbytes for weight in trained.weights.values()),
        metrics=trained.metrics,
        weights=checkpoints.to_stored(trained.weights),
    )
