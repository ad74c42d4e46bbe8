"""The batches of a job, by iteration number: the same in every attempt at it."""

from collections.abc import Generator, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tensile_db.data import features as making
from tensile_db.data.augmentation import Augmentation
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import Change, unchanged
from tensile_db.data.layout import RowName
from tensile_db.data.prefetcher import Prefetcher
from tensile_db.data.split import shuffled
from tensile_db.data.statistics import RowArray

#: Features, the target where there is one, weights of its classes where these have any, and of images that
#: are bytes their normalisation: arrays, and tensors of what NumPy has no type for.
Batch = tuple[Any, ...]


class FeatureSource(Protocol):
    """All rows' features, of which batches are made: a step's inputs, [rows, ...] each."""

    @property
    def byte_channels(self) -> int | None:
        """Channels of images that are bytes; None: no such."""
        ...

    def batch(self, rows: npt.NDArray[np.int64], *rest: npt.NDArray[Any], change: Change = ...) -> Batch:
        """Return the inputs for these rows, changed where they are images, then the rest."""
        ...

    def padded(self, rows: npt.NDArray[np.int64], batch_size: int) -> Batch:
        """Return the inputs for these rows, the last of them repeated up to the batch's size."""
        ...


@dataclass(frozen=True, kw_only=True)
class Features:
    """All rows' features, and how a batch is made of them."""

    #: [rows, channels, height, width] or [rows, features], in the source's units.
    values: RowArray
    spec: FeatureSpec
    #: Of rows that the spec's mean and deviation were not found by; None: they were.
    row_name: RowName | None = None

    def __len__(self) -> int:
        return len(self.values)

    @property
    def byte_channels(self) -> int | None:
        """Channels of images that are bytes, which are normalised where they are used; None: no such."""
        is_bytes = self.spec.kind == "image" and self.values.dtype == np.uint8
        return self.values.shape[1] if is_bytes else None

    def normalised(
        self,
        rows: npt.NDArray[np.int64],
        change: Change = unchanged,
    ) -> npt.NDArray[np.float32]:
        """Return the features of these rows as the network takes them, float32 [rows, *spec.input_shape].

        Raises BadData, naming the row, where they are too far from those of the training for float32.
        """
        return making.batch(self.values, rows, self.spec, self.row_name, change)

    def batch(
        self,
        rows: npt.NDArray[np.int64],
        *rest: npt.NDArray[Any],
        change: Change = unchanged,
    ) -> Batch:
        """Return a step's inputs: the features of these rows, then the rest: target and weights of classes.

        Features that are bytes stay so, uint8 [rows, byte_channels, height, width]; last comes then what
        normalises them, float32 [2, byte_channels, 1, 1].
        """
        if self.byte_channels is None:
            return self.normalised(rows, change), *rest
        return np.ascontiguousarray(change(self.values[rows])), *rest, making.normalisation(self.spec)

    def padded(self, rows: npt.NDArray[np.int64], batch_size: int) -> Batch:
        """Return the inputs for these rows, the last of them repeated up to the batch's size."""
        return self.batch(np.concatenate([rows, np.repeat(rows[-1:], batch_size - len(rows))]))


class TrainingSet:
    """Training batches without end, and the rows held out."""

    def __init__(
        self,
        features: Features,
        target: npt.NDArray[Any],
        *,
        training_rows: npt.NDArray[np.int64],
        validation_rows: npt.NDArray[np.int64],
        batch_size: int,
        seed: int,
        row_name: RowName | None = None,
        class_weights: npt.NDArray[np.float32] | None = None,
        augmentation: Augmentation | None = None,
    ) -> None:
        """target: int64 codes of classes, or float32 numbers; [rows].

        class_weights: float32 [classes], the same with every batch; None: there are none.
        augmentation: of images that are trained on; None: they stay as they are.
        row_name: of rows held out, which the statistics are not of: see `Features.row_name`.
        """
        self._features: FeatureSource = features
        self._held_out: FeatureSource = replace(features, row_name=row_name)
        self._target = target
        self._training_rows = training_rows
        self._validation_rows = validation_rows
        self._seed = seed
        self._augmentation = augmentation
        self._weights = () if class_weights is None else (class_weights,)
        #: Rows of a batch: fewer than asked for where there are no more.
        self.batch_size = min(batch_size, len(training_rows))

    def with_features(self, features: FeatureSource) -> "TrainingSet":
        """Return the same rows in the same batches, with what was made of their features."""
        assert self._augmentation is None, "features that change are made anew in each epoch"
        made = copy(self)
        made._features = made._held_out = features  # noqa: SLF001 - of its own class
        return made

    @property
    def byte_channels(self) -> int | None:
        """As of the features."""
        return self._features.byte_channels

    @property
    def batches_per_epoch(self) -> int:
        """Training batches of one epoch; rows that do not fill a last one come in another epoch's order."""
        return len(self._training_rows) // self.batch_size

    @property
    def validation_count(self) -> int:
        """Rows held out."""
        return len(self._validation_rows)

    def training(self, first: int) -> Generator[Batch]:
        """Yield the batches of iterations `first` (from 1), `first + 1`, ... without end, prepared ahead.

        To be closed, which waits for the thread that prepares them.
        """
        ahead = Prefetcher(lambda: self._training(first))
        try:
            yield from ahead
        finally:
            ahead.close()

    def validation(self, batch_size: int) -> Iterator[tuple[Batch, npt.NDArray[Any]]]:
        """Yield features of `batch_size` rows, the last ones padded, and the targets of the real rows.

        Raises BadData as `Features.normalised` does.
        """
        for begin in range(0, len(self._validation_rows), batch_size):
            rows = self._validation_rows[begin : begin + batch_size]
            yield self._held_out.padded(rows, batch_size), self._target[rows]

    def _training(self, first: int) -> Iterator[Batch]:
        epoch, place = divmod(first - 1, self.batches_per_epoch)
        while True:
            order = shuffled(self._training_rows, self._seed, epoch)
            for index in range(place, self.batches_per_epoch):
                rows = order[index * self.batch_size : (index + 1) * self.batch_size]
                change = self._change(epoch * self.batches_per_epoch + index + 1)
                yield self._features.batch(rows, self._target[rows], *self._weights, change=change)
            epoch, place = epoch + 1, 0

    def _change(self, iteration: int) -> Change:
        augmentation = self._augmentation
        if augmentation is None:
            return unchanged
        return lambda found: augmentation.changed(found, self._seed, iteration)


class PredictingSet:
    """All rows in order, for predictions and evaluations."""

    def __init__(
        self,
        features: Features,
        keys: Sequence[str | None],
        *,
        batch_size: int,
        target: npt.NDArray[Any] | None = None,
    ) -> None:
        """keys: what names each row; target: as in TrainingSet, to be compared with."""
        self._features = features
        self._keys = keys
        self._target = target
        self.batch_size = batch_size

    @property
    def byte_channels(self) -> int | None:
        """As of the features."""
        return self._features.byte_channels

    def __len__(self) -> int:
        return len(self._features)

    def batches(self) -> Iterator[tuple[Batch, Sequence[str | None], npt.NDArray[Any] | None]]:
        """Yield features of `batch_size` rows, the last ones padded; keys and targets of the real rows."""
        for begin in range(0, len(self), self.batch_size):
            end = min(begin + self.batch_size, len(self))
            rows = np.arange(begin, end)
            target = None if self._target is None else self._target[begin:end]
            yield self._features.padded(rows, self.batch_size), self._keys[begin:end], target
