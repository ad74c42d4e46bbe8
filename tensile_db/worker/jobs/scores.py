"""How good outputs are, batch by batch: summed in double precision on the host."""

import math
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from tensile_db.data.target_scaling import TargetScaling


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
    """What the network learns to make small as `loss`; `mse`, `rmse` and `mae` in the target's own unit."""

    def __init__(self, scaling: TargetScaling) -> None:
        self._scale = scaling.scale
        self._rows = 0
        self._squares = 0.0
        self._distances = 0.0

    def add(self, outputs: torch.Tensor, target: np.ndarray) -> None:
        """target: standardised numbers, as the outputs are; one for each row."""
        error = outputs[:, 0].double() - torch.from_numpy(np.ascontiguousarray(target)).double()
        self._squares += float(error.square().sum())
        self._distances += float(error.abs().sum())
        self._rows += len(error)

    def values(self) -> Mapping[str, float]:
        """Return `loss`, `mse`, `rmse` and `mae`; mse in the square of the target's unit."""
        if not self._rows:
            return {}
        loss = self._squares / self._rows
        # A float's power raises where the product is infinite.
        mse = loss * self._scale * self._scale
        return {
            "loss": loss,
            "mse": mse,
            "rmse": math.sqrt(loss) * self._scale,
            "mae": self._distances / self._rows * self._scale,
        }


def score_for(scaling: TargetScaling | None) -> Score:
    """Return an empty score; scaling: of a number, None for classes."""
    return ClassificationScore() if scaling is None else RegressionScore(scaling)
