"""What a training's request comes to: its rows, its network, and the steps that are captured of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from tensile_db.capture.forward_step import lower_forward_step
from tensile_db.capture.frozen_steps import BackboneFeature, FrozenSteps, frozen_steps, head_forward_step
from tensile_db.capture.networks import architectures
from tensile_db.capture.networks.freezing import freeze_backbone
from tensile_db.capture.optimizers import OptimizerConfig, configure
from tensile_db.capture.precision import Precision, precision_of
from tensile_db.capture.schedules import LearningRateSchedule, schedule_of
from tensile_db.capture.state import initial_state
from tensile_db.capture.step import CapturedStep
from tensile_db.capture.trace import TracedStep
from tensile_db.capture.train_step import TracedTraining, lower_train_step
from tensile_db.catalog.graphs import Described
from tensile_db.catalog.jobs import JobRow
from tensile_db.latency.ewma import LatencyAverage
from tensile_db.udf.options import check_option, check_warm_up
from tensile_db.worker.handover import PlannerInput
from tensile_db.worker.jobs import capturing
from tensile_db.worker.jobs.early_stopping import check_patience
from tensile_db.worker.jobs.initial_model import find_initial_model, weights_of_model
from tensile_db.worker.jobs.initial_weights import InitialWeights, take_weights
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.pretrained import find_pretrained, weights_of_pretrained
from tensile_db.worker.jobs.rows import PreparedRows, open_training_rows

_OPTIMIZER_OPTIONS = ("momentum", "weight_decay", "betas", "eps", "max_gradient_norm")


@dataclass(frozen=True, kw_only=True)
class Network:
    """A job's network on batches of its rows."""

    job: Job
    rows: PreparedRows
    model: nn.Module
    optimizer: OptimizerConfig
    #: Only the layer of the outputs is trained.
    is_frozen: bool
    #: That it starts from; None: anew.
    start: InitialWeights | None

    @property
    def precision(self) -> Precision:
        """Of its arithmetic."""
        return precision_of(self.job.row.options)

    def train_step(self) -> CapturedStep:
        """Return the training step.  Raises Stopped, and what capturing raises."""
        return lower_train_step(self._training)

    def frozen_steps(self) -> FrozenSteps | None:
        """Return the training step in two, as `capture.frozen_steps` does.  Raises as `train_step`."""
        return frozen_steps(self._training, self._forward(self.rows.batch_size))

    def forward_step(
        self, batch_size: int, features: tuple[BackboneFeature, ...] | None = None
    ) -> CapturedStep:
        """Return the step that goes forward over so many rows; features: the head's alone, over such.

        Raises as `train_step`.
        """
        forward = self._forward(batch_size)
        if features is None:
            return lower_forward_step(forward)
        step = head_forward_step(forward, features)
        assert step is not None, f"with {batch_size} rows the backbone hands something else over"
        return step

    def forget_training(self) -> None:
        """Let go of the training step's trace when nothing more is lowered of it.

        It takes memory, unless it is kept for others (traces.py).
        """
        self.__dict__.pop("_training", None)

    def initial_state(self) -> dict[str, torch.Tensor]:
        """Return the values of all persistent tensors before the first iteration, by name, on the host."""
        state = initial_state(self.model, self.optimizer, scales_loss=self.precision.scales_loss)
        if self.start is not None:
            take_weights(self.job, self.start, state)
        return state

    def describe(self, step: CapturedStep) -> None:
        """Let the planner begin with a step, and the catalog keep its graph."""
        self.job.setting.foresee(step.graph)
        input_shape = self.rows.input_shape
        self.job.describe(
            Described(
                graph=step.graph,
                architecture=self.job.row.architecture or "",
                batch_size=self.rows.batch_size,
                image_size=input_shape[-1] if len(input_shape) == 3 else None,
                optimizer=self.optimizer.name if "loss" in step.outputs else None,
            )
        )
        self.job.check()

    @cached_property
    def _training(self) -> TracedTraining:
        rows = self.rows
        return capturing.traced_training(
            self.model,
            batch_shape=(rows.batch_size, *rows.input_shape),
            task=rows.task,
            optimizer=self.optimizer,
            device=self.job.setting.device.torch_device,
            precision=self.precision,
            byte_channels=rows.byte_channels,
            num_class_weights=rows.num_class_weights,
            num_outputs=rows.num_outputs,
            architecture=self.job.row.architecture,
            is_frozen=self.is_frozen,
            check=self.job.check,
        )

    def _forward(self, batch_size: int) -> TracedStep:
        rows = self.rows
        return capturing.traced_forward(
            self.model,
            batch_shape=(batch_size, *rows.input_shape),
            device=self.job.setting.device.torch_device,
            precision=self.precision,
            byte_channels=rows.byte_channels,
            num_outputs=rows.num_outputs,
            architecture=self.job.row.architecture,
            check=self.job.check,
        )


def prepare_network(job: Job) -> Network:
    """Read the rows and build the network.  Raises what these raise."""
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
    return Network(job=job, rows=rows, model=model, optimizer=optimizer, is_frozen=is_frozen, start=start)


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


def epochs_of(row: JobRow) -> int:
    """Return the epochs of a training."""
    # A row may have come into the catalog past the functions.
    return row.epochs or 1


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


def _optimizer(row: JobRow) -> OptimizerConfig:
    given: dict[str, Any] = {name: row.options[name] for name in _OPTIMIZER_OPTIONS if name in row.options}
    return configure(row.optimizer or "momentum", learning_rate=row.learning_rate, **given)


def _schedule(row: JobRow, rows: PreparedRows) -> LearningRateSchedule | None:
    name = row.options.get("learning_rate_schedule", "constant")
    warmup_epochs, epochs = row.options.get("warmup_epochs", 0), epochs_of(row)
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
