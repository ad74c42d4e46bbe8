"""How good outputs are, batch by batch: summed in double precision on the host."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from tensile_db.data.target_scaling import TargetScaling

#: Of a sum of squares, what its rounding may come to.
_ROUNDING = 1e-12


class Score(Protocol):
    """Metrics of some rows."""

    def add(self, outputs: torch.Tensor, target: np.ndarray) -> None:
        """Take in a batch: one row of outputs, and one target, for each row."""
        ...

    def values(self) -> Mapping[str, float]:
        """Return the metrics by name; empty where there were no rows."""
        ...


class ClassificationScore:
    """Scores of predicted classes: `loss`, `accuracy`, `balanced_accuracy`, `macro_f1`; of two classes more.

    `loss` is the mean cross entropy, `balanced_accuracy` the mean of classes' recalls, `macro_f1` of F1s.
    Where the network tells two classes, and rows of both are there: `precision`, `recall` and `f1` of the
    second one; and, where outputs are finite, `roc_auc`, the area under the ROC curve: the probability that a
    row of the second class scores more than one of the first.

    Source: Brodersen et al., "The Balanced Accuracy and Its Posterior Distribution" (ICPR 2010); of more than
    two classes it is the mean of each one's recall, as scikit-learn's.  Hanley and McNeil, "The Meaning and
    Use of the Area under a ROC Curve" (Radiology, 1982).  van Rijsbergen, "Information Retrieval" (1979), for
    F1; `macro_f1` is the mean over classes that rows are of or are predicted to be of, as scikit-learn's.
    """

    def __init__(self) -> None:
        self._loss_sum = 0.0
        #: Of two classes: by how much the second one's output is larger, and whether a row is of it.
        self._margins: list[npt.NDArray[np.float64]] = []
        self._are_second: list[npt.NDArray[np.bool_]] = []
        #: By class, of those that there are rows of.
        self._rows: Counter[int] = Counter()
        self._right: Counter[int] = Counter()
        #: By class, of those that rows are predicted to be of.
        self._predicted: Counter[int] = Counter()

    def add(self, outputs: torch.Tensor, target: np.ndarray) -> None:
        """target: int64 class numbers."""
        wanted = torch.from_numpy(np.ascontiguousarray(target))
        self._loss_sum += float(functional.cross_entropy(outputs.double(), wanted, reduction="sum"))
        predicted = outputs.argmax(dim=1)
        self._right.update(wanted[predicted == wanted].tolist())
        self._predicted.update(predicted.tolist())
        self._rows.update(wanted.tolist())
        if outputs.shape[1] == 2:
            self._margins.append((outputs[:, 1].double() - outputs[:, 0].double()).numpy())
            self._are_second.append(target == 1)

    def values(self) -> Mapping[str, float]:
        """Return the metrics by name; empty where there were no rows."""
        count = self._rows.total()
        if not count:
            return {}
        recalls = [self._right[label] / rows for label, rows in self._rows.items()]
        f1s = [self._f1(label) for label in self._rows | self._predicted]
        values = {
            "loss": self._loss_sum / count,
            "accuracy": self._right.total() / count,
            "balanced_accuracy": math.fsum(recalls) / len(recalls),
            "macro_f1": math.fsum(f1s) / len(f1s),
        }
        if not self._margins or len(self._rows) < 2:
            return values
        return values | self._second_class() | self._roc_auc()

    def _f1(self, label: int) -> float:
        """Return precision's and recall's harmonic mean, of a class that has rows or is predicted."""
        return 2 * self._right[label] / (self._rows[label] + self._predicted[label])

    def _second_class(self) -> dict[str, float]:
        """Return its scores; both classes have rows."""
        right, predicted = self._right[1], self._predicted[1]
        return {
            # Where it is never predicted 0, as in scikit-learn.
            "precision": right / predicted if predicted else 0.0,
            "recall": right / self._rows[1],
            "f1": self._f1(1),
        }

    def _roc_auc(self) -> dict[str, float]:
        """Return it where outputs are finite; both classes have rows."""
        margins, is_second = np.concatenate(self._margins), np.concatenate(self._are_second)
        if not np.isfinite(margins).all():
            return {}
        _, places, counts = np.unique(margins, return_inverse=True, return_counts=True)
        # Rows that score alike share their ranks' mean, so that each pair of them counts a half.
        ranks = np.cumsum(counts) - (counts - 1) / 2
        second = int(is_second.sum())
        above = float(ranks[places[is_second]].sum()) - second * (second + 1) / 2
        return {"roc_auc": above / (second * (len(is_second) - second))}


class RegressionScore:
    """What the network learns to make small as `loss`; `mse`, `rmse`, `mae` in the target's own unit; `r2`.

    The last is the coefficient of determination, 1 where all is predicted, 0 as for always guessing the rows'
    mean; there is none of targets that are all one.
    """

    def __init__(self, scaling: TargetScaling) -> None:
        self._scale = scaling.scale
        self._rows = 0
        self._squares = 0.0
        self._distances = 0.0
        #: Of the targets' distances from the first one: their sum, and that of their squares.
        self._first: float | None = None
        self._sum = 0.0
        self._target_squares = 0.0

    def add(self, outputs: torch.Tensor, target: np.ndarray) -> None:
        """target: standardised numbers, as the outputs are; one for each row."""
        wanted = torch.from_numpy(np.ascontiguousarray(target)).double()
        error = outputs[:, 0].double() - wanted
        if self._first is None and len(wanted):
            self._first = float(wanted[0])
        distances = wanted - (self._first or 0.0)
        self._sum += float(distances.sum())
        self._target_squares += float(distances.square().sum())
        self._squares += float(error.square().sum())
        self._distances += float(error.abs().sum())
        self._rows += len(error)

    def values(self) -> Mapping[str, float]:
        """Return `loss`, `mse`, `rmse`, `mae` and `r2`; mse in the square of the target's unit."""
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
            **self._r2(),
        }

    def _r2(self) -> Mapping[str, float]:
        spread = self._target_squares - self._sum * self._sum / self._rows
        # What rounding leaves of equal targets is no spread.
        if not spread > _ROUNDING * self._target_squares:
            return {}
        return {"r2": 1 - self._squares / spread}


def score_for(scaling: TargetScaling | None) -> Score:
    """Return an empty score; scaling: of a number, None for classes."""
    return ClassificationScore() if scaling is None else RegressionScore(scaling)
