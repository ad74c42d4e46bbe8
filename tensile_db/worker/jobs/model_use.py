"""A trained model in a job that uses it: found, its step recorded, its weights read."""

from collections.abc import Sequence

import torch
from sqlalchemy import Connection

from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import models, plans
from tensile_db.catalog.graphs import Described
from tensile_db.catalog.models import ModelRow
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.target_scaling import TargetScaling
from tensile_db.errors import UndefinedModel
from tensile_db.worker.jobs import checkpoints
from tensile_db.worker.jobs.job import Job


def find_model(job: Job) -> ModelRow:
    """Return the model that the job uses.  Raises UndefinedModel."""
    model_id = job.row.model_id
    model = None if model_id is None else job.records.must(lambda conn: models.find(conn, model_id))
    if model is None:
        raise is_no_more(f'"{job.row.model}"')
    return model


def record_step(
    job: Job, model: ModelRow, step: CapturedStep, *, batch_size: int, input_shape: Sequence[int]
) -> None:
    """Have the graph of the model's forward step kept; input_shape: of one row."""
    job.describe(
        Described(
            graph=step.graph,
            architecture=model.architecture,
            batch_size=batch_size,
            image_size=input_shape[-1] if len(input_shape) == 3 else None,
            optimizer=None,
        )
    )


def read_state(job: Job, model: ModelRow) -> tuple[dict[str, torch.Tensor], int]:
    """Return the model's parameters and buffers by name, on the host, and the job's newest plan's version.

    Raises UndefinedModel where it has been dropped since it was found.
    """

    def read(conn: Connection) -> tuple[dict[str, torch.Tensor], int]:
        with models.read_weights(conn, model.id) as stored:
            state = checkpoints.from_stored(stored)
        return state, plans.newest_version(conn, job.row.id)

    state, version = job.records.must(read)
    if not state:
        raise is_no_more(f'"{job.row.model}"')
    return state, version


def spec_of(model: ModelRow) -> FeatureSpec:
    """Return how the model's features are made of a row."""
    return FeatureSpec.from_json({name: v for name, v in model.features.items() if name != "options"})


def scaling_of(model: ModelRow) -> TargetScaling | None:
    """Return how the model's number was standardised; None where it predicts a class."""
    if model.classes is not None:
        return None
    if model.target_scaling is None:
        # Trained on the number as it is.
        return TargetScaling(mean=0.0, scale=1.0)
    return TargetScaling.from_json(model.target_scaling)


def is_no_more(model: str) -> UndefinedModel:
    """Return the error of a model that has been dropped meanwhile; model: what to call it."""
    return UndefinedModel(f"the model {model} is no more", hint="tensile_models() lists those that are.")
