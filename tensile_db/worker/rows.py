"""The rows that a job reads, as what the worker's loops ask for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg

from tensile_db.capture import architectures
from tensile_db.catalog.models import ModelRow
from tensile_db.data.columns import Column, Form, Variable
from tensile_db.data.copy_binary import Values
from tensile_db.data.dataset import Features, ServingSet, TrainingSet
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import prepare
from tensile_db.data.labels import Class, encode, find_classes
from tensile_db.data.layout import Layout, find_layout
from tensile_db.data.snapshot import Reading, describe_source, read
from tensile_db.data.source import Source
from tensile_db.data.split import split
from tensile_db.data.statistics import statistics
from tensile_db.data.stored_rows import StoredRows, key_texts, open_rows
from tensile_db.errors import BadData, InvalidRequest
from tensile_db.worker import capturing
from tensile_db.worker.job import Job
from tensile_db.worker.serving import ServingBatch
from tensile_db.worker.training import TrainingRows

#: Held out unless the request says otherwise.
_VALIDATION = 0.1


@dataclass(frozen=True, kw_only=True)
class PreparedRows:
    """A training job's rows, read and ready."""

    training_rows: TrainingRows
    #: Rows read.
    count: int
    #: Of one row: (features,) or (channels, height, width).
    input_shape: tuple[int, ...]
    batch_size: int
    #: "classification" or "regression".
    task: str
    #: Labels in the order of the outputs; None for a number.
    classes: Sequence[Any] | None
    #: How to make the same of another source's rows; kept with the model.
    features: Mapping[str, Any]
    target: str
    #: Says whether another attempt has read the same.
    digest: str

    @property
    def num_outputs(self) -> int:
        """Outputs of the network."""
        return 1 if self.classes is None else len(self.classes)


class PreparedServingRows:
    """A serving job's rows, read and ready."""

    def __init__(self, rows: ServingSet, input_shape: tuple[int, ...]) -> None:
        self._rows = rows
        #: Of one row.
        self.input_shape = input_shape
        #: Rows of a batch.
        self.batch_size = rows.batch_size

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self) -> Iterator[ServingBatch]:
        """Yield all of them, in order."""
        return self._rows.batches()


def open_training_rows(job: Job) -> PreparedRows:
    """Read a training job's rows.

    Raises what data/ raises for rows and columns, BadData where there are none, InvalidRequest where the
    network cannot take them.
    """
    row = job.row
    assert row.architecture is not None
    source, stored = _read(
        job, features=row.features, target=row.target, wants_target=True, task=row.options.get("task")
    )
    if stored.count == 0:
        raise BadData(
            f"{row.source_name} has no rows that you can see",
            hint="Insert rows first, or look at the table's row-level security.",
        )
    assert source.target is not None
    named = _row_name(source, stored)
    target, classes = _target(source.target, stored.values[len(source.features)], source.task, named)
    training, held_out = split(
        stored.count,
        _VALIDATION if row.validation is None else row.validation,
        row.seed,
        None if classes is None else target,
    )
    layout = _layout(row.architecture, row.options, source, stored, named)
    size, channels = _image_size(row.architecture, row.options, layout)
    made = prepare(
        layout,
        stored.values[: len(source.features)],
        size=(size[0], size[1]) if size else None,
        channels=channels or None,
        path=job.folder / "features.npy",
        row_name=named,
        progress=lambda _: job.check(),
    )
    mean, scale = statistics(made, training)
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
    )
    batches = TrainingSet(
        Features(values=made, spec=spec),
        target,
        training_rows=training,
        validation_rows=held_out,
        batch_size=row.batch_size or 32,
        seed=row.seed,
    )
    return PreparedRows(
        training_rows=batches,
        count=stored.count,
        input_shape=spec.input_shape,
        batch_size=batches.batch_size,
        task="regression" if classes is None else "classification",
        classes=classes,
        features=spec.to_json(),
        target=source.target.name,
        digest=stored.digest,
    )


def open_serving_rows(
    job: Job, model: ModelRow, *, batch_size: int, with_target: bool
) -> PreparedServingRows:
    """Read the rows that a model predicts, made into features as its training rows were.

    Raises what data/ raises for rows and columns, InvalidRequest where they are not of the model's shape.
    """
    spec = FeatureSpec.from_json({name: v for name, v in model.features.items() if name != "options"})
    source, stored = _read(
        job,
        features=spec.columns,
        target=model.target if job.row.target is None else job.row.target,
        wants_target=with_target,
        task="regression" if with_target and model.classes is None else None,
    )
    named = _row_name(source, stored)
    keys = _keys(source, stored)
    if stored.count == 0:
        empty = Features(values=np.empty((0, *spec.input_shape), np.float32), spec=spec)
        return PreparedServingRows(ServingSet(empty, keys, batch_size=batch_size), spec.input_shape)
    layout = Layout(
        kind=spec.kind,
        columns=source.features,
        shape=spec.source_shape,
        raw=spec.raw,
        channels_first=spec.channels_first,
    )
    _check_shape(layout, stored.values[: len(source.features)])
    made = prepare(
        layout,
        stored.values[: len(source.features)],
        size=(spec.size[0], spec.size[1]) if spec.kind == "image" else None,
        channels=spec.channels or None,
        path=job.folder / "features.npy",
        row_name=named,
        progress=lambda _: job.check(),
    )
    target = None
    if with_target:
        assert source.target is not None
        values = stored.values[len(source.features)]
        target = (
            _numbers(source.target, values, named)
            if model.classes is None
            else encode(values, source.target, tuple(model.classes))
        )
    features = Features(values=made, spec=spec)
    size = min(batch_size, stored.count)
    return PreparedServingRows(ServingSet(features, keys, batch_size=size, target=target), spec.input_shape)


def _read(
    job: Job, *, features: Sequence[str] | None, target: str | None, wants_target: bool, task: Any
) -> tuple[Source, StoredRows]:
    """Read the source's rows as its submitter; the rows so far stand in the job's row.

    An attempt after the first takes the rows that an earlier one has read on this machine, if it did.
    """

    def progress(count: int) -> None:
        job.check()
        job.records.progress(rows_total=count)

    reading = Reading(
        relation=job.row.source_oid,
        submitter=job.row.submitted_by,
        features=features,
        target=target,
        wants_target=wants_target,
        task=task,
    )
    folder = job.folder / "rows"
    with psycopg.connect(job.setting.dsn, autocommit=True) as connection:
        earlier = open_rows(folder) if job.row.attempt > 1 else None
        if earlier is not None:
            source = describe_source(connection, reading)
            if _are_of(source, earlier):
                return source, earlier
        return read(connection, reading, folder, progress=progress, check=job.check)


def _are_of(source: Source, stored: StoredRows) -> bool:
    """Tell whether stored rows have the columns that the source has now."""
    return [isinstance(values, Variable) for values in stored.values] == [
        column.form in (Form.BYTES, Form.TEXT) for column in source.columns
    ]


def _layout(
    architecture: str,
    options: Mapping[str, Any],
    source: Source,
    stored: StoredRows,
    named: Callable[[int], str],
) -> Layout:
    wants_images = architectures.resolve(architecture).takes_images
    layout = find_layout(
        source.features,
        stored.values[: len(source.features)],
        wants_images=wants_images,
        raw_shape=options.get("raw_shape"),
        row_name=named,
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


def _target(
    column: Column, values: Values, task: str | None, named: Callable[[int], str]
) -> tuple[np.ndarray, tuple[Class, ...] | None]:
    """Return codes and classes, or numbers and None."""
    if task == "regression":
        return _numbers(column, values, named), None
    classes = find_classes(values, column)
    return encode(values, column, classes), classes


def _numbers(column: Column, values: Values, named: Callable[[int], str]) -> np.ndarray:
    numbers = np.asarray(values, np.float32)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise BadData(
            f'column "{column.name}" of row {named(int(bad[0]))} holds NaN or a number beyond float32',
            hint="Leave such rows out by a view, or replace the values.",
        )
    return numbers


def _check_shape(layout: Layout, values: Sequence[Values]) -> None:
    """Raise InvalidRequest where arrays have another length than those that the model was trained on."""
    first = values[0]
    want = int(np.prod(layout.shape))
    if isinstance(first, np.ndarray) and first.ndim > 1 and int(np.prod(first.shape[1:])) != want:
        raise InvalidRequest(
            f'arrays of column "{layout.columns[0].name}" have {int(np.prod(first.shape[1:])):,} elements,'
            f" but the model was trained on {want:,}",
            hint="Name a source whose rows are like those of the training.",
        )


def _keys(source: Source, stored: StoredRows) -> Sequence[str | None]:
    if source.key is None:
        return [None] * stored.count
    return key_texts(stored.values[-1], range(stored.count))


def _row_name(source: Source, stored: StoredRows) -> Callable[[int], str]:
    def name(row: int) -> str:
        if source.key is None:
            return f"number {row + 1}"
        return f"{source.key.name}={key_texts(stored.values[-1], range(row, row + 1))[0]}"

    return name
