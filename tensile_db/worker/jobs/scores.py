"""How good outputs are, batch by batch: summed in double precision on the host."""

import math
from collections import Counter
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
    """Mean cross entropy as `loss`, `accuracy`, and `balanced_accuracy`, in which all classes count alike.

    Source: Brodersen et al., "The Balanced Accuracy and Its Posterior Distribution" (ICPR 2010); of more than
    two classes it is the mean of each one's recall, as scikit-learn's.
    """

    def __init__(self) -> None:
        self._loss_sum = 0.0
        #: By class, of those that there are rows of.
        self._rows: Counter[int] = Counter()
        self._right: Counter[int] = Counter()

    def add(self, outputs: torch.Tensor, target: np.ndarray) -> None:
        """target: int64 class numbers."""
        wanted = torch.from_numpy(np.ascontiguousarray(target))
        self._loss_sum += float(functional.cross_entropy(outputs.double(), wanted, reduction="sum"))
        self._right.update(wanted[outputs.argmax(dim=1) == wanted].tolist())
        self._rows.update(wanted.tolist())

    def values(self) -> Mapping[str, float]:
        """Return `loss`, `accuracy` and `balanced_accuracy`."""
        count = self._rows.total()
        if not count:
            return {}
        recalls = [self._right[label] / rows for label, rows in self._rows.items()]
        return {
            "loss": self._loss_sum / count,
            "accuracy": self._right.total() / count,
            "balanced_accuracy": math.fsum(recalls) / len(recalls),
        }


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
