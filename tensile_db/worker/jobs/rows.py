"""The rows that a job trains on, as what its loop asks for."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensile_db.capture.networks import architectures
from tensile_db.data import unexpected
from tensile_db.data.columns import Variable
from tensile_db.data.dataset import Features, TrainingSet
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import prepare
from tensile_db.data.layout import Layout, find_layout
from tensile_db.data.source import Source
from tensile_db.data.statistics import statistics
from tensile_db.data.stored_rows import StoredRows
from tensile_db.data.target_scaling import TargetScaling
from tensile_db.errors import BadData, InvalidRequest
from tensile_db.worker.jobs import capturing
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.source_rows import read_rows, row_name
from tensile_db.worker.jobs.targets import read_target
from tensile_db.worker.jobs.training import TrainingRows


@dataclass(frozen=True, kw_only=True)
class PreparedRows:
    """A training job's rows, read and ready."""

    training_rows: TrainingRows
    #: Rows read.
    count: int
    #: Of one row: (features,) or (channels, height, width).
    input_shape: tuple[int, ...]
    #: Of images that come as bytes; None: features come as the network takes them.
    byte_channels: int | None
    batch_size: int
    #: "classification" or "regression".
    task: str
    #: Labels in the order of the outputs; None for a number.
    classes: Sequence[Any] | None
    #: Of a number; None for classes.
    scaling: TargetScaling | None
    #: How to make the same of another source's rows; kept with the model.
    features: Mapping[str, Any]
    target: str
    #: Says whether another attempt has read the same.
    digest: str

    @property
    def num_outputs(self) -> int:
        """Outputs of the network."""
        return 1 if self.classes is None else len(self.classes)


def open_training_rows(job: Job) -> PreparedRows:
    """Read a training job's rows.

    Raises what data/ raises for rows and columns, BadData where there are none, InvalidRequest where the
    network cannot take them.
    """
    row = job.row
    assert row.architecture is not None
    source, stored = read_rows(
        job, features=row.features, target=row.target, wants_target=True, task=row.options.get("task")
    )
    if stored.count == 0:
        raise BadData(
            f"{row.source_name} has no rows that you can see",
            hint="Insert rows and COMMIT, or look at the table's row-level security.",
        )
    named = row_name(source, stored)
    target = read_target(row, source, stored, named)
    for surprise in target.surprises:
        job.notice(surprise)
    layout = _layout(row.architecture, row.options, source, stored, named, job.check)
    size, channels = _image_size(row.architecture, row.options, layout)
    with job.making_files():
        made = prepare(
            layout,
            stored.values[: len(source.features)],
            size=(size[0], size[1]) if size else None,
            channels=channels or None,
            path=job.folder / _features_file(job, stored, layout, size, channels),
            keeps=job.shares_folder,
            row_name=named,
            progress=lambda _: job.check(),
        )
    mean, scale, is_constant = statistics(made, target.training_rows)
    _require_finite(mean, scale, [column.name for column in source.features])
    if layout.kind == "vector":
        for surprise in unexpected.constant_columns(source.features, is_constant, len(target.training_rows)):
            job.notice(surprise)
    spec = FeatureSpec(
        kind=layout.kind,
        columns=tuple(column.name for column in source.features),
        source_shape=layout.shape,
        raw=layout.raw,
        channels_first=layout.channels_first,
        size=size,
        channels=channels,
        mean=mean,
        scale=scale,
        dtypes=tuple(
            "uint8" if isinstance(column, Variable) else column.dtype.name
            for column in stored.values[: len(source.features)]
        ),
    )
    batches = TrainingSet(
        Features(values=made, spec=spec),
        target.values,
        training_rows=target.training_rows,
        validation_rows=target.held_out,
        batch_size=row.batch_size or 32,
        seed=row.seed,
        row_name=named,
    )
    return PreparedRows(
        training_rows=batches,
        count=stored.count,
        input_shape=spec.input_shape,
        byte_channels=batches.byte_channels,
        batch_size=batches.batch_size,
        task="regression" if target.classes is None else "classification",
        classes=target.classes,
        scaling=target.scaling,
        features=spec.to_json(),
        target=target.name,
        digest=stored.digest,
    )


def _features_file(job: Job, stored: StoredRows, layout: Layout, size: tuple[int, ...], channels: int) -> str:
    """Return the name of the file of features: where jobs share it, by all that decides what is in it."""
    if not job.shares_folder:
        return "features.npy"
    what = repr((stored.digest, layout, size, channels))
    return f"features-{hashlib.sha256(what.encode()).hexdigest()[:16]}.npy"


def _layout(
    architecture: str,
    options: Mapping[str, Any],
    source: Source,
    stored: StoredRows,
    named: Callable[[int], str],
    check: Callable[[], None],
) -> Layout:
    wants_images = architectures.resolve(architecture).takes_images
    layout = find_layout(
        source.features,
        stored.values[: len(source.features)],
        wants_images=wants_images,
        raw_shape=options.get("raw_shape"),
        row_name=named,
        check=check,
    )
    if wants_images and layout.kind != "image":
        raise InvalidRequest(
            f'architecture "{architecture}" takes images, but the features are columns of numbers',
            hint="Use architecture \"mlp\", or name a column of images: features => ARRAY['...'].",
        )
    return layout


def _image_size(architecture: str, options: Mapping[str, Any], layout: Layout) -> tuple[tuple[int, ...], int]:
    """Return (height, width) and channels of the network's images; () and 0 for vectors."""
    if layout.kind != "image":
        return (), 0
    height, width, channels = layout.shape
    asked = options.get("image_size")
    size = (asked, asked) if asked is not None else capturing.image_size(architecture, (height, width))
    return size, architectures.default_channels(architecture, channels)


def _require_finite(mean: Sequence[float], scale: Sequence[float], names: Sequence[str]) -> None:
    """Refuse features whose deviation is beyond float64.  Raises BadData."""
    for place, numbers in enumerate(zip(mean, scale, strict=True)):
        if not np.isfinite(numbers).all():
            name = names[place] if len(names) == len(mean) else names[0]
            raise BadData(
                f'the column "{name}" has numbers too far apart to be learned from',
                hint="Look for values that stand for none, e.g. 1e300, and leave their rows out.",
            )
