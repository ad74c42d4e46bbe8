"""Latency samples and models as the catalog's rows, and back; and predictions from what it knows."""

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection

from tensile_db.capture.step import CapturedStep
from tensile_db.catalog import latency_models
from tensile_db.catalog.latency_models import ModelRow, SampleRow
from tensile_db.latency.features import OpFeatures
from tensile_db.latency.model import from_json
from tensile_db.latency.predictor import KindModel, Predicted, predict
from tensile_db.latency.samples import LatencySample
from tensile_db.latency.training import Learned
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.latencies.op_features import step_features

#: No kernel takes so many times what its device could.
_LARGEST_SCALE = 1e9


def predict_step(
    conn: Connection, step: CapturedStep, device: DeviceSpec, *, hardware: str, utilization: float
) -> Predicted:
    """Return the predicted latencies of a step's ops, by what is known of the hardware.

    hardware: its name (hardware.py); utilization: of the device by others, 0 to 1.
    """
    features = step_features(step)
    models = read_models(conn, hardware, {op.kind for op in features})
    return predict(features, models, device, utilization=utilization)


def read_models(conn: Connection, hardware: str, kinds: Iterable[str]) -> dict[str, KindModel]:
    """Return the models of these kinds; of one in an older format the roofline's scale alone.

    A scale that is none, which nobody here writes, is as if nothing were known.
    """
    return {
        row.kind: KindModel(
            network=None if row.network is None else from_json(row.network),
            roofline_scale=row.roofline_scale,
        )
        for row in latency_models.read_models(conn, hardware, set(kinds))
        if 0 < row.roofline_scale < _LARGEST_SCALE
    }


def replace_models(conn: Connection, hardware: str, learned: Mapping[str, Learned]) -> None:
    """Make these the hardware's models."""
    latency_models.replace_models(
        conn, hardware, [_model_row(kind, one) for kind, one in sorted(learned.items())]
    )


def add_samples(conn: Connection, hardware: str, probe: int, samples: Iterable[LatencySample]) -> None:
    """Add what was measured of one probe."""
    latency_models.add_samples(conn, hardware, probe, map(_sample_row, samples))


def read_samples(conn: Connection, hardware: str) -> list[LatencySample]:
    """Return all samples of the hardware, in the order in which they were measured."""
    return [_sample(row) for row in latency_models.read_samples(conn, hardware)]


def _model_row(kind: str, learned: Learned) -> ModelRow:
    errors, network = learned.errors, learned.model.network
    return ModelRow(
        kind=kind,
        network=None if network is None else network.to_json(),
        roofline_scale=learned.model.roofline_scale,
        sample_count=learned.sample_count,
        held_out_count=None if errors is None else errors.sample_count,
        r_squared=None if errors is None else errors.r_squared,
        r_squared_log=None if errors is None else errors.r_squared_log,
        median_relative_error=None if errors is None else errors.median_relative_error,
    )


def _sample_row(sample: LatencySample) -> SampleRow:
    op = sample.features
    return SampleRow(
        kind=op.kind,
        features=dict(zip(op.names, op.values, strict=True)),
        flops=op.flops,
        moved_nbytes=op.moved_nbytes,
        utilization=sample.utilization,
        latency_ns=sample.latency_ns,
    )


def _sample(row: SampleRow) -> LatencySample:
    # A jsonb's keys come in an order of its own.
    names = tuple(sorted(row.features))
    return LatencySample(
        features=OpFeatures(
            kind=row.kind,
            names=names,
            values=tuple(float(row.features[name]) for name in names),
            flops=row.flops,
            moved_nbytes=row.moved_nbytes,
        ),
        utilization=row.utilization,
        latency_ns=row.latency_ns,
    )
