"""Jobs that train: from the request to a saved model, or, for an explanation, to the plan alone."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from sqlalchemy import Connection
from torch import nn

from tensile_db.capture.networks import architectures
from tensile_db.capture.networks.freezing import freeze_backbone
from tensile_db.capture.optimizers import OptimizerConfig, configure
from tensile_db.capture.precision import precision_of
from tensile_db.capture.schedules import LearningRateSchedule, schedule_of
from tensile_db.capture.state import initial_state
from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import checkpoints as stored_checkpoints
from tensile_db.catalog import events, jobs, latencies, models, plans
from tensile_db.catalog.graphs import Described
from tensile_db.catalog.jobs import JobRow
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.scheduler.shares import limit_of
from tensile_db.udf.options import check_option, check_warm_up
from tensile_db.worker.handover import PlannerInput
from tensile_db.worker.jobs import capturing, checkpoints
from tensile_db.worker.jobs.checkpoints import Checkpoint
from tensile_db.worker.jobs.early_stopping import check_patience
from tensile_db.worker.jobs.initial_model import find_initial_model, weights_of_model
from tensile_db.worker.jobs.initial_weights import InitialWeights, take_weights
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.pretrained import find_pretrained, weights_of_pretrained
from tensile_db.worker.jobs.rows import PreparedRows, open_training_rows
from tensile_db.worker.jobs.training import EpochEnded, Trained, Training, TrainingWork
from tensile_db.worker.mailbox import Stopped
from tensile_db.worker.messages import MemoryFreed, StopReason
from tensile_db.worker.planning.explaining import explain
from tensile_db.worker.searching.trial import Trial, after_epoch, keeps_model, trial_of

log = logging.getLogger(__name__)

#: Unless the options say otherwise.
_CHECKPOINT_SECONDS = 60.0

_OPTIMIZER_OPTIONS = ("momentum", "weight_decay", "betas", "eps", "max_gradient_norm")


@dataclass(frozen=True, kw_only=True)
class _Network:
    """What a request's network comes to."""

    model: nn.Module
    step: CapturedStep
    optimizer: OptimizerConfig
    batch_size: int
    #: That it starts from; None: anew.
    start: InitialWeights | None


def run_training(job: Job) -> None:
    """Train, and save the model."""
    rows, network = _prepare(job, job.with_workspaces_of_parts)
    trial = trial_of(job)
    work = _work(job, rows, network, after_epoch(job, trial))
    order = job.admit(_planner_input(job.row, network.step, work.averages), phase="training")
    state = work.initial_state() if work.checkpoint is None else work.checkpoint.state
    left: Checkpoint | None = None
    with job.on_device(order, state=state, seed=work.seed) as memory:
        # The device's side and the host's are the job's memory's now.
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
    _save(job, rows, trained, trial)


def run_explanation(job: Job) -> None:
    """Write what the plan would be as the job's result."""
    rows, network = _prepare(job, job.with_known_workspaces)
    averages = LatencyAverage(job.predict(network.step))
    job.tell_planner(_planner_input(job.row, network.step, averages))
    explanation = job.mailbox.wait_for_explanation()
    device = job.setting.device.spec
    explained = explain(
        explanation,
        network.step.graph,
        averages.average_ns,
        device,
        policy=job.row.policy,
        batch_size=rows.batch_size,
        iterations=_epochs(job.row) * rows.training_rows.batches_per_epoch,
        limit_nbytes=limit_of(job.row, device.memory_nbytes),
    )
    job.records.must(lambda conn: jobs.succeed(conn, job.records.fence, {"rows": explained}))


def _prepare(
    job: Job, with_workspaces: Callable[[CapturedStep], CapturedStep]
) -> tuple[PreparedRows, _Network]:
    """Read the rows, build the network, capture a step of it, which gets its workspaces."""
    row = job.row
    assert row.architecture is not None
    job.enter("reading")
    # What is wrong with the request shows before the rows are read.
    architectures.resolve(row.architecture)
    optimizer = _optimizer(row)
    initial, pretrained = find_initial_model(job), find_pretrained(job)
    rows = open_training_rows(job, initial, pretrained)
    check_patience(row.options.get("patience"), rows.training_rows.validation_count)
    job.records.progress(rows_total=rows.count)
    optimizer = replace(optimizer, schedule=_schedule(row, rows))
    job.enter("capturing")
    model = capturing.build(
        row.architecture,
        num_outputs=rows.num_outputs,
        input_shape=rows.input_shape,
        seed=row.seed,
        options=row.options,
        check=job.check,
    )
    is_frozen = row.options.get("freeze_backbone") is True
    wider = _shapes(job, rows, rows.num_outputs + 1) if is_frozen or pretrained is not None else None
    if is_frozen:
        freeze_backbone(model, wider, architecture=row.architecture)
    start = None
    if initial is not None:
        # It may have fewer outputs.
        narrower = (
            None if initial.num_outputs == rows.num_outputs else _shapes(job, rows, initial.num_outputs)
        )
        start = weights_of_model(job, initial, model, narrower)
    elif pretrained is not None:
        start = weights_of_pretrained(job, pretrained, model, wider)
    step = with_workspaces(
        capturing.train_step(
            model,
            batch_shape=(rows.batch_size, *rows.input_shape),
            task=rows.task,
            optimizer=optimizer,
            device=job.setting.device.torch_device,
            precision=precision_of(row.options),
            byte_channels=rows.byte_channels,
            num_class_weights=rows.num_class_weights,
            num_outputs=rows.num_outputs,
            architecture=row.architecture,
            is_frozen=is_frozen,
            check=job.check,
        )
    )
    # Until it is asked, the graph is written, its checkpoint read and its latencies are predicted.
    job.setting.foresee(step.graph)
    job.describe(
        Described(
            graph=step.graph,
            architecture=row.architecture or "",
            batch_size=rows.batch_size,
            image_size=rows.input_shape[-1] if len(rows.input_shape) == 3 else None,
            optimizer=optimizer.name,
        )
    )
    job.check()
    network = _Network(model=model, step=step, optimizer=optimizer, batch_size=rows.batch_size, start=start)
    return rows, network


def _shapes(job: Job, rows: PreparedRows, num_outputs: int) -> Mapping[str, Sequence[int]] | None:
    """Return the shapes of the network's tensors if it had so many outputs; None where nobody knows."""
    assert job.row.architecture is not None
    return capturing.weight_shapes(
        job.row.architecture,
        num_outputs=num_outputs,
        input_shape=rows.input_shape,
        options=job.row.options,
        check=job.check,
    )


def _work(
    job: Job,
    rows: PreparedRows,
    network: _Network,
    look: EpochEnded | None,
) -> TrainingWork:
    row = job.row
    precision = precision_of(row.options)
    checkpoint, plan_version, measured_ns = job.records.must(
        lambda conn: _history(conn, row, network.step.graph.digest)
    )
    if checkpoint is not None and checkpoint.progress.rows != rows.digest:
        # Half a training on these rows and half on others is neither.
        log.warning("job %s starts anew: its rows have changed since its checkpoint", row.id)
        changed = {"iteration": checkpoint.progress.iteration, "reason": "the source's rows have changed"}
        job.records.later(lambda conn: events.add(conn, row.id, "restarted", changed))
        checkpoint = None
    averages = LatencyAverage(job.predict(network.step))
    # An earlier attempt has measured these ops; on this worker's device, or on one of its kind.
    averages.sample([measured_ns.get(op.id) for op in network.step.graph.ops])
    forward_steps: dict[int, CapturedStep] = {}

    def capture_forward(batch_size: int) -> CapturedStep:
        if batch_size not in forward_steps:
            step = capturing.forward_step(
                network.model,
                batch_shape=(batch_size, *rows.input_shape),
                device=job.setting.device.torch_device,
                precision=precision,
                byte_channels=rows.byte_channels,
                num_outputs=rows.num_outputs,
                architecture=row.architecture,
                check=job.check,
            )
            forward_steps[batch_size] = job.with_workspaces(step)
        return forward_steps[batch_size]

    def begin() -> dict[str, torch.Tensor]:
        state = initial_state(network.model, network.optimizer, scales_loss=precision.scales_loss)
        if network.start is not None:
            take_weights(job, network.start, state)
        return state

    return TrainingWork(
        step=network.step,
        capture_forward=capture_forward,
        rows=rows.training_rows,
        rows_digest=rows.digest,
        scaling=rows.scaling,
        epochs=_epochs(row),
        batch_size=network.batch_size,
        seed=row.seed,
        averages=averages,
        initial_state=begin,
        checkpoint=checkpoint,
        plan_version=plan_version,
        checkpoint_iterations=row.options.get("checkpoint_iterations"),
        checkpoint_seconds=float(row.options.get("checkpoint_seconds", _CHECKPOINT_SECONDS)),
        patience=row.options.get("patience"),
        learning_rate=None if network.optimizer.schedule is None else network.optimizer.learning_rate_of,
        after_epoch=look,
    )


def _history(
    conn: Connection, row: JobRow, captured_digest: str
) -> tuple[Checkpoint | None, int, Mapping[int, int]]:
    """Return what earlier attempts left: a checkpoint, the newest plan's version, latencies of this graph."""
    if row.attempt == 1:
        return None, 0, {}
    return (
        checkpoints.load(conn, row.id),
        plans.newest_version(conn, row.id),
        latencies.newest(conn, row.id, captured_digest),
    )


def _optimizer(row: JobRow) -> OptimizerConfig:
    given: dict[str, Any] = {name: row.options[name] for name in _OPTIMIZER_OPTIONS if name in row.options}
    return configure(row.optimizer or "momentum", learning_rate=row.learning_rate, **given)


def _epochs(row: JobRow) -> int:
    # A row may have come into the catalog past the functions.
    return row.epochs or 1


def _schedule(row: JobRow, rows: PreparedRows) -> LearningRateSchedule | None:
    name = row.options.get("learning_rate_schedule", "constant")
    warmup_epochs, epochs = row.options.get("warmup_epochs", 0), _epochs(row)
    # A row may have come into the catalog past the functions.
    check_option("learning_rate_schedule", name)
    check_option("warmup_epochs", warmup_epochs)
    check_warm_up(row.options, epochs)
    return schedule_of(
        name,
        warmup_epochs,
        epochs=epochs,
        updates_per_epoch=rows.training_rows.batches_per_epoch,
    )


def _planner_input(row: JobRow, step: CapturedStep, averages: LatencyAverage) -> PlannerInput:
    return PlannerInput(
        graph=step.graph,
        latencies=averages,
        policy=row.policy,
        max_swapping_rate=float(row.options.get("max_swapping_rate", 1.0)),
        memory_limit_nbytes=row.memory_limit_nbytes,
    )


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
