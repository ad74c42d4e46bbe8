"""Weights of classes in the loss: how much an error at a row of each counts.

Source: "balanced" is King and Zeng, "Logistic Regression in Rare Events Data" (2001), as scikit-learn's.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tensile_db.data.labels import Class, label_text
from tensile_db.errors import UnknownName


def class_weights(
    asked: str | Mapping[str, float], classes: Sequence[Class], codes: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Return the weight of each class, float32 [classes].

    asked: "balanced", by which all classes that there are rows of have the same part in the loss, or weights
    by class as PostgreSQL writes it; other classes weigh 1.  codes: places among the classes of the rows that
    are trained on, int64 [rows].
    Raises UnknownName for what is none of the classes.
    """
    if isinstance(asked, str):
        counts = np.bincount(codes, minlength=len(classes))
        there = counts > 0
        weights = np.ones(len(classes))
        weights[there] = len(codes) / (there.sum() * counts[there])
        return weights.astype(np.float32)
    place_of = {label_text(label): place for place, label in enumerate(classes)}
    weights = np.ones(len(classes))
    for name, weight in asked.items():
        if name not in place_of:
            raise UnknownName("class in class_weights", name, place_of, listed_in="the values of the target")
        weights[place_of[name]] = weight
    return weights.astype(np.float32)
