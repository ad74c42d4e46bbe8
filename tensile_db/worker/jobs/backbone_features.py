"""What a frozen backbone makes of each row, in a file, and batches of it.

A row of the file has the bytes of all tensors that the backbone hands over to the head, one behind the other.
It is written from its first row to its last under another name, whose size says how many are there, whatever
ends the writer's process; a boot, which may lose what was written last, ends that name's use.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tensile_db.capture.frozen_steps import BackboneFeature
from tensile_db.data.features import Change, share_of_disk_nbytes, unchanged
from tensile_db.worker.host import boot_identity

Bytes = npt.NDArray[np.uint8]


class DiskFull(Exception):
    """The disk has no room for the features."""


class BackboneFeatures:
    """All rows' features, as a training set takes them (data/dataset.py)."""

    #: They are no images.
    byte_channels = None

    def __init__(self, path: Path, features: Sequence[BackboneFeature], *, count: int) -> None:
        """features: in the order of the head's inputs; count: of the rows."""
        #: Of a row, in that order.
        self.kinds = tuple(features)
        self._rows: Bytes = np.memmap(path, np.uint8, "r", shape=(count, row_nbytes(features)))

    def batch(
        self, rows: npt.NDArray[np.int64], *rest: npt.NDArray[Any], change: Change = unchanged
    ) -> tuple[npt.NDArray[Any] | torch.Tensor, ...]:
        """Return the head's inputs for these rows: a tensor [rows, ...] for each feature, then the rest."""
        assert change is unchanged, "features of images that change are made anew in each epoch"
        return *from_bytes(self._rows[rows], self.kinds), *rest

    def padded(
        self, rows: npt.NDArray[np.int64], batch_size: int
    ) -> tuple[npt.NDArray[Any] | torch.Tensor, ...]:
        """Return the inputs for these rows, the last of them repeated up to the batch's size."""
        return self.batch(np.concatenate([rows, np.repeat(rows[-1:], batch_size - len(rows))]))


class FeatureFile:
    """The file while it is written."""

    def __init__(self, path: Path, features: Sequence[BackboneFeature], *, count: int) -> None:
        """path: that it has when it is whole; count: of the rows that it then has."""
        self._path = path
        self._part = path.with_name(f"{path.name}.{boot_identity()}.part")
        self._row_nbytes = row_nbytes(features)
        self._count = count

    @property
    def is_whole(self) -> bool:
        """Whether all rows are there."""
        return self._path.exists() and self._path.stat().st_size == self._nbytes

    @property
    def _nbytes(self) -> int:
        return self._count * self._row_nbytes

    def begin(self, batch_size: int) -> int:
        """Return how many whole batches are there, and forget what goes beyond them.

        Raises DiskFull where there is no room for the others.
        """
        batch_nbytes = batch_size * self._row_nbytes
        with _writing():
            self._part.touch()
            batches = self._part.stat().st_size // batch_nbytes
            os.truncate(self._part, batches * batch_nbytes)
        left_nbytes = self._nbytes - batches * batch_nbytes
        if left_nbytes > share_of_disk_nbytes(self._path.parent):
            raise DiskFull(f"the disk has no room for {left_nbytes} bytes of features")
        return batches

    def append(self, batches: Sequence[Bytes]) -> None:
        """Write the next batches; rows beyond the last are left out.  Raises DiskFull."""
        with _writing(), self._part.open("ab") as file:
            for made in batches:
                left = self._count - file.tell() // self._row_nbytes
                file.write(made[:left].data)

    def finish(self) -> None:
        """Give the file its name, when all rows are there.  Raises DiskFull."""
        with _writing():
            with self._part.open("rb") as file:
                os.fsync(file.fileno())
            assert self._part.stat().st_size == self._nbytes, "rows are missing"
            self._part.rename(self._path)

    def remove(self) -> None:
        """Remove what is there of it."""
        self._part.unlink(missing_ok=True)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DiskFull(f"the features cannot be written: {error.strerror}") from error


def row_nbytes(features: Sequence[BackboneFeature]) -> int:
    """Return the bytes of one row."""
    return sum(feature.nbytes for feature in features)


def to_bytes(outputs: Mapping[str, torch.Tensor]) -> Bytes:
    """Return what the backbone makes of a batch as rows of a file, uint8 [rows, bytes of a row]."""
    parts = [value.contiguous().reshape(len(value), -1).view(torch.uint8) for value in outputs.values()]
    made: Bytes = torch.cat(parts, dim=1).numpy()
    return made


def from_bytes(rows: Bytes, features: Sequence[BackboneFeature]) -> list[torch.Tensor]:
    """Return the tensors of a batch, [rows, ...], of rows of a file."""
    made, begin = [], 0
    for feature in features:
        own = np.ascontiguousarray(rows[:, begin : begin + feature.nbytes])
        made.append(torch.from_numpy(own).view(feature.dtype).reshape(len(rows), *feature.shape))
        begin += feature.nbytes
    return made
