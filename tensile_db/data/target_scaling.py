"""Numbers to predict: standardised for training, and back in their own unit for people.

A network starts out with outputs of about one deviation around zero; prices around 200,000 would take it
steps that diverge long before it got there.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data.columns import Column
from tensile_db.data.copy_binary import Values
from tensile_db.data.layout import RowName
from tensile_db.data.statistics import LEAST_SPREAD
from tensile_db.errors import BadData, InvalidRequest

FORMAT = 1

_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScaling:
    """From a target in its own unit to what the network learns, (value - mean) / scale, and back."""

    #: Of the training rows, in the target's unit.
    mean: float
    #: Their standard deviation; 1 where all of them are equal.
    scale: float

    def standardise(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return what the network learns of values in the target's unit."""
        return (values - self.mean) / self.scale

    def texts(self, outputs: npt.NDArray[np.float32]) -> list[str]:
        """Return what outputs of the network say in the target's unit, in digits that mean something."""
        numbers = outputs.astype(np.float64) * self.scale + self.mean
        # Of an output, float32 knows no more than the distance to its neighbour.
        known_to = np.spacing(np.abs(outputs)).astype(np.float64) * self.scale
        decimals = np.ceil(-np.log10(known_to)).tolist()
        return [
            str(round(number, int(places)) if math.isfinite(places) else number)
            for number, places in zip(numbers.tolist(), decimals, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Return an object for the catalog."""
        return {"format": FORMAT} | asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "TargetScaling":
        """Return the scaling that `to_json` wrote.  Raises InvalidRequest for another format."""
        if data.get("format") != FORMAT:
            raise InvalidRequest(
                f"the model's target has format {data.get('format')!r}, but this version reads {FORMAT}",
                hint="Train the model again, or use the version of tensile_db that made it.",
            )
        return cls(mean=data["mean"], scale=data["scale"])


def find_scaling(values: npt.NDArray[np.float64]) -> TargetScaling:
    """Return mean and standard deviation of the training rows' targets, of which there is at least one."""
    low, high = float(values.min()), float(values.max())
    if high - low < LEAST_SPREAD:
        return TargetScaling(mean=low, scale=1.0)
    mean = float(values.mean())
    # Of the largest distance first: squares of very small ones would vanish.
    distances = values - mean
    spread = float(np.abs(distances).max())
    return TargetScaling(mean=mean, scale=spread * math.sqrt(float(np.square(distances / spread).mean())))


def read_numbers(values: Values, column: Column, row_name: RowName) -> npt.NDArray[np.float64]:
    """Return a target's numbers, float64 [rows].  Raises BadData, naming the row, where one is none."""
    numbers = np.asarray(values, np.float64)
    # A NaN is not within bounds either.
    bad = np.flatnonzero(~(np.abs(numbers) <= _FLOAT32_MAX))
    if len(bad):
        number = float(numbers[bad[0]])
        what = f"{number:g}, which float32 has no number for" if math.isfinite(number) else f"{number}"
        raise BadData(
            f'column "{column.name}" of row {row_name(int(bad[0]))} holds {what}',
            hint="Leave such rows out by a view, or replace the values"
            + (", as by their logarithm." if math.isfinite(number) else "."),
        )
    return numbers


def learned_numbers(
    scaling: TargetScaling, numbers: npt.NDArray[np.float64], column: Column, row_name: RowName
) -> npt.NDArray[np.float32]:
    """Return what the network learns of a target's numbers, float32 [rows].

    Raises BadData, naming the row, for a number more deviations away from the mean than float32 has numbers
    for: of a row held out, or where mean and deviation are those of other rows.
    """
    with np.errstate(over="ignore"):
        made = scaling.standardise(numbers).astype(np.float32)
    beyond = np.flatnonzero(~np.isfinite(made))
    if len(beyond):
        row = int(beyond[0])
        raise BadData(
            f'column "{column.name}" of row {row_name(row)} holds {float(numbers[row]):g}, which is more'
            f" deviations of {scaling.scale:g} away from the mean, {scaling.mean:g}, than float32 has"
            " numbers for",
            hint="Leave such rows out by a view, or train on rows that are like them.",
        )
    return made
