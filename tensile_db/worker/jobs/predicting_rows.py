"""The rows that a model predicts or is measured on, made into features as its training rows were."""

from collections.abc import Iterator, Sequence

import numpy as np

from tensile_db.catalog.models import ModelRow
from tensile_db.data import unexpected
from tensile_db.data.as_trained import as_kept, layout_as_trained
from tensile_db.data.columns import Nulls
from tensile_db.data.dataset import Features, PredictingSet
from tensile_db.data.encodings import unknown_by_column
from tensile_db.data.features import prepare
from tensile_db.data.labels import encode
from tensile_db.data.source import Source
from tensile_db.data.stored_rows import StoredRows, key_texts
from tensile_db.data.target_scaling import TargetScaling, read_numbers
from tensile_db.worker.jobs.job import Job
from tensile_db.worker.jobs.model_use import scaling_of, spec_of
from tensile_db.worker.jobs.predicting import PredictingBatch
from tensile_db.worker.jobs.source_rows import null_targets_of, read_rows, row_name


class PreparedRows:
    """The rows of a job that predicts or evaluates, read and ready."""

    def __init__(
        self, rows: PredictingSet, input_shape: tuple[int, ...], scaling: TargetScaling | None
    ) -> None:
        self._rows = rows
        #: Of a number to predict; None for classes.
        self.scaling = scaling
        #: Of one row.
        self.input_shape = input_shape
        #: Of images that come as bytes; None: features come as the network takes them.
        self.byte_channels = rows.byte_channels
        #: Rows of a batch.
        self.batch_size = rows.batch_size

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self) -> Iterator[PredictingBatch]:
        """Yield all of them, in order."""
        return self._rows.batches()


def open_predicting_rows(job: Job, model: ModelRow, *, batch_size: int, with_target: bool) -> PreparedRows:
    """Read the rows that a model predicts, made into features as its training rows were.

    Raises what data/ raises for rows and columns, InvalidRequest where they are not like the model's.
    """
    spec = spec_of(model)
    scaling = scaling_of(model)
    source, stored = read_rows(
        job,
        features=spec.columns,
        target=model.target if job.row.target is None else job.row.target,
        wants_target=with_target,
        task="regression" if with_target and model.classes is None else None,
        nulls=spec.nulls,
        # What was no mistake in the rows to train on is none in these.
        null_targets=null_targets_of(model.features.get("options") or {}, Nulls.REFUSED),
    )
    named = row_name(source, stored)
    keys = _keys(source, stored)
    if stored.count == 0:
        empty = Features(values=np.empty((0, *spec.input_shape), np.float32), spec=spec)
        nothing = PredictingSet(empty, keys, batch_size=batch_size)
        return PreparedRows(nothing, spec.input_shape, scaling)
    found = stored.values[: len(source.features)]
    made = prepare(
        layout_as_trained(spec, source.features, found),
        [as_kept(spec, values) for values in found],
        size=(spec.size[0], spec.size[1]) if spec.kind == "image" else None,
        channels=spec.channels or None,
        path=job.folder / "features.npy",
        row_name=named,
        progress=lambda _: job.check(),
    )
    for column, texts in unknown_by_column(spec, source.features, found):
        for surprise in unexpected.unknown_categories(model.name, column, texts):
            job.notice(surprise)
    target = None
    if with_target:
        assert source.target is not None
        learned = stored.values[len(source.features)]
        target = (
            encode(learned, source.target, tuple(model.classes or ()), named)
            if scaling is None
            else scaling.standardise(read_numbers(learned, source.target, named))
        )
    features = Features(values=made, spec=spec, row_name=named)
    batches = PredictingSet(features, keys, batch_size=min(batch_size, stored.count), target=target)
    return PreparedRows(batches, spec.input_shape, scaling)


def _keys(source: Source, stored: StoredRows) -> Sequence[str | None]:
    if source.key is None:
        return [None] * stored.count
    return key_texts(stored.values[-1], range(stored.count))
