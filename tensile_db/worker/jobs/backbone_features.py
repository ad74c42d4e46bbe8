"""What a frozen backbone makes of each row, in a file, and batches of it.

A row of the file has the bytes of all tensors that the head takes of the backbone, one behind the other.  It
is written from its first row to its last, so that its size says how many are there, whatever ends the writer.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tensile_db.capture.frozen_steps import BackboneFeature
from tensile_db.data.features import Change, unchanged

Bytes = npt.NDArray[np.uint8]


class BackboneFeatures:
    """All rows' features, as a training set takes them (data/dataset.py)."""

    #: They are no images.
    byte_channels = None

    def __init__(self, path: Path, features: Sequence[BackboneFeature]) -> None:
        """features: in the order of the head's inputs."""
        self._features = tuple(features)
        self._rows: Bytes = np.memmap(path, np.uint8, "r").reshape(-1, row_nbytes(features))

    def batch(
        self, rows: npt.NDArray[np.int64], *rest: npt.NDArray[Any], change: Change = unchanged
    ) -> tuple[Any, ...]:
        """Return the inputs of the head for these rows: tensors, then the rest."""
        assert change is unchanged, "features of images that change are another's"
        return *from_bytes(self._rows[rows], self._features), *rest

    def padded(self, rows: npt.NDArray[np.int64], batch_size: int) -> tuple[Any, ...]:
        """Return the inputs for these rows, the last of them repeated up to the batch's size."""
        return self.batch(np.concatenate([rows, np.repeat(rows[-1:], batch_size - len(rows))]))


def row_nbytes(features: Sequence[BackboneFeature]) -> int:
    """Return the bytes of one row."""
    return sum(feature.nbytes for feature in features)


def to_bytes(outputs: Mapping[str, torch.Tensor]) -> Bytes:
    """Return a batch of what the backbone has made as rows of a file, uint8 [rows, bytes of a row]."""
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
