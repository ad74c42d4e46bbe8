"""How good outputs are, batch by batch: summed in double precision on the host."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional


class Score(Protocol):
    """Metrics of some rows."""

    def add(self, outputs: torch.Tensor, target: np.ndarray) -> None:
        """Take in a batch: one row of outputs, and one target, for each row."""
        ...

    def values(self) -> Mapping[str, float]:
        """Return the metrics by name; empty where there were no rows."""
        ...


class ClassificationScore:
    """Mean cross entropy as `loss`, and `accuracy`."""

    def __init__(self) -> None:
        self._rows = 0
        self._right = 0
        self._loss_sum = 0.0

    def add(self, outputs: torch.Tensor, target: np.ndarray) -> None:
        """target: int64 class numbers."""
        wanted = torch.from_numpy(np.ascontiguousarray(target))
        self._loss_sum += float(functional.cross_entropy(outputs.double(), wanted, reduction="sum"))
        self._right += int((outputs.argmax(dim=1) == wanted).sum())
        self._rows += len(wanted)

    def values(self) -> Mapping[str, float]:
        """Return `loss` and `accuracy`."""
        if not self._rows:
            return {}
        return {"loss": self._loss_sum / self._rows, "accuracy": self._right / self._rows}


class RegressionScore:
    """Mean squared error as `loss` and `mse`, and the mean absolute error as `mae`."""

    def __init__(self) -> None:
        self._rows = 0
        self._squares = 0.0
        self._distances = 0.0

    def add(self, outputs: torch.Tensor, target: np.ndarray) -> None:
        """target: float32 numbers; outputs: one for each row."""
        error = outputs[:, 0].double() - torch.from_numpy(np.ascontiguousarray(target)).double()
        self._squares += float(error.square().sum())
        self._distances += float(error.abs().sum())
        self._rows += len(error)

    def values(self) -> Mapping[str, float]:
        """Return `loss`, `mse` and `mae`."""
        if not self._rows:
            return {}
        mse = self._squares / self._rows
        return {"loss": mse, "mse": mse, "mae": self._distances / self._rows}


def score_for(task: str) -> Score:
    """Return an empty score for "classification" or "regression"."""
    return ClassificationScore() if task == "classification" else RegressionScore()
