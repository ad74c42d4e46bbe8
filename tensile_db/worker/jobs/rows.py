"""The rows that a job trains on, as what its loop asks for."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.capture.networks import architectures
from tensile_db.catalog.pretrained import PretrainedRow
from tensile_db.data import unexpected
from tensile_db.data.as_trained import as_kept, layout_as_trained
from tensile_db.data.augmentation import find_augmentation
from tensile_db.data.columns import Nulls
from tensile_db.data.copy_binary import Values
from tensile_db.data.dataset import Features, TrainingSet
from tensile_db.data.encodings import find_encodings, need_encodings, unknown_by_column
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import prepare
from tensile_db.data.find_spec import find_spec, read_dtypes
from tensile_db.data.layout import Layout, encoded_layout, find_layout
from tensile_db.data.source import Source
from tensile_db.data.stored_rows import StoredRows
from tensile_db.data.target_scaling import TargetScaling
from tensile_db.errors import BadData, InvalidRequest
from tensile_db.worker.jobs import capturing
from tensile_db.worker.jobs.initial_model import InitialModel
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.pretrained import standardised_as
from tensile_db.worker.jobs.source_rows import null_targets_of, read_rows, row_name
from tensile_db.worker.jobs.targets import read_target


@dataclass(frozen=True, kw_only=True)
class PreparedRows:
    """A training job's rows, read and ready."""

    training_rows: TrainingSet
    #: Of all rows, in their order.
    inputs: Features
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
    #: How many there are, where classes have weights in the loss; None: all rows count alike.
    num_class_weights: int | None
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


def open_training_rows(
    job: Job, initial: InitialModel | None, pretrained: PretrainedRow | None
) -> PreparedRows:
    """Read a training job's rows; initial, pretrained: the model or the weights that it starts from.

    Raises what data/ raises for rows and columns, BadData where there are none, InvalidRequest where the
    network cannot take them.
    """
    row = job.row
    assert row.architecture is not None
    source, stored = read_rows(
        job,
        features=row.features,
        target=row.target,
        wants_target=True,
        task=row.options.get("task"),
        nulls=_nulls(row.options, initial),
        null_targets=null_targets_of(row.options, Nulls.REFUSED_AS_TARGET),
    )
    if stored.count == 0:
        assert source.target is not None
        raise BadData(
            f"{row.source_name} has no rows that you can see"
            + (f' with a "{source.target.name}"' if source.target.nulls is Nulls.LEFT_OUT else ""),
            hint="Insert rows and COMMIT, or look at the table's row-level security.",
        )
    named = row_name(source, stored)
    target = read_target(row, source, stored, named, initial)
    for surprise in target.surprises:
        job.notice(surprise)
    found: Sequence[Values] = stored.values[: len(source.features)]
    if initial is None:
        layout = _layout(
            row.architecture, row.options, source, stored, target.training_rows, named, job.check
        )
        size, channels = _image_size(row.architecture, row.options, layout, pretrained)
        if pretrained is not None and "image_size" not in row.options:
            for surprise in unexpected.larger_images(pretrained.name, layout.shape, size):
                job.notice(surprise)
    else:
        layout = _layout_as_learned(initial.spec, row.options, source, found, named)
        found = [as_kept(initial.spec, values) for values in found]
        for column, texts in unknown_by_column(initial.spec, source.features, found):
            for surprise in unexpected.new_categories(initial.name, column, texts):
                job.notice(surprise)
        size, channels = _asked_size(row.options) or initial.spec.size, initial.spec.channels
    augmentation = find_augmentation(row.options, size)
    with job.making_files():
        made = prepare(
            layout,
            found,
            size=(size[0], size[1]) if size else None,
            channels=channels or None,
            path=job.folder / _features_file(job, stored, layout, size, channels),
            keeps=job.shares_folder,
            row_name=named,
            progress=lambda _: job.check(),
        )
    if initial is None:
        spec, surprises = find_spec(layout, found, made, target.training_rows, size, channels, job.check)
        for surprise in surprises:
            job.notice(surprise)
        if pretrained is not None:
            spec = standardised_as(spec, pretrained, are_bytes=made.dtype == np.uint8)
    else:
        spec = replace(initial.spec, size=size, dtypes=read_dtypes(found))
    batches = TrainingSet(
        # The mean and deviation are the model's: any row may be too far from them.
        Features(values=made, spec=spec, row_name=None if initial is None else named),
        target.values,
        training_rows=target.training_rows,
        validation_rows=target.held_out,
        batch_size=row.batch_size or 32,
        seed=row.seed,
        row_name=named,
        class_weights=target.class_weights,
        augmentation=augmentation,
    )
    return PreparedRows(
        training_rows=batches,
        inputs=Features(values=made, spec=spec, row_name=named),
        count=stored.count,
        input_shape=spec.input_shape,
        byte_channels=batches.byte_channels,
        batch_size=batches.batch_size,
        task="regression" if target.classes is None else "classification",
        classes=target.classes,
        num_class_weights=None if target.class_weights is None else len(target.class_weights),
        scaling=target.scaling,
        features=spec.to_json(),
        target=target.name,
        digest=stored.digest,
    )


def _nulls(options: Mapping[str, Any], initial: InitialModel | None) -> Nulls:
    """Return what becomes of rows whose features are NULL."""
    if initial is not None:
        return initial.spec.nulls
    return Nulls.KEPT if options.get("nulls") == "impute" else Nulls.REFUSED_WITH_OPTION


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
    training_rows: npt.NDArray[np.int64],
    named: Callable[[int], str],
    check: Callable[[], None],
) -> Layout:
    wants_images = architectures.resolve(architecture).takes_images
    values = stored.values[: len(source.features)]
    if need_encodings(source.features):
        if wants_images:
            raise _takes_images(architecture)
        return encoded_layout(source.features, find_encodings(source.features, values, training_rows, named))
    layout = find_layout(
        source.features,
        values,
        wants_images=wants_images,
        raw_shape=options.get("raw_shape"),
        row_name=named,
        check=check,
    )
    if wants_images and layout.kind != "image":
        raise _takes_images(architecture)
    return layout


def _takes_images(architecture: str) -> InvalidRequest:
    return InvalidRequest(
        f'architecture "{architecture}" takes images, but the features are columns of numbers or texts',
        hint="Use architecture \"mlp\", or name a column of images: features => ARRAY['...'].",
    )


def _layout_as_learned(
    spec: FeatureSpec,
    options: Mapping[str, Any],
    source: Source,
    values: Sequence[Values],
    named: Callable[[int], str],
) -> Layout:
    """Return the layout of the model to start from, which the source's columns have to have, too.

    Raises InvalidRequest where they have another.
    """
    layout = layout_as_trained(spec, source.features, values)
    raw_shape = options.get("raw_shape")
    if raw_shape is not None and layout != find_layout(
        source.features, values, wants_images=spec.kind == "image", raw_shape=raw_shape, row_name=named
    ):
        raise InvalidRequest(
            f"raw_shape {list(raw_shape)} is not that of the model that the training starts from,"
            f" {list(spec.stored_shape)}",
            hint="Leave it out.",
        )
    return layout


def _image_size(
    architecture: str, options: Mapping[str, Any], layout: Layout, pretrained: PretrainedRow | None
) -> tuple[tuple[int, ...], int]:
    """Return (height, width) and channels of the network's images; () and 0 for vectors."""
    if layout.kind != "image":
        return (), 0
    height, width, channels = layout.shape
    size = _asked_size(options)
    if size is None and pretrained is not None:
        size = pretrained.height, pretrained.width
    if size is None:
        size = capturing.image_size(architecture, (height, width))
    return size, architectures.default_channels(architecture, channels)


def _asked_size(options: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the (height, width) that a request wants images in; None where it does not say."""
    asked = options.get("image_size")
    return None if asked is None else (asked, asked)
