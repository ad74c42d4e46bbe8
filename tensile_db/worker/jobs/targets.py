"""What a training job learns, and which of its rows are held out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.catalog.jobs import JobRow
from tensile_db.data import unexpected
from tensile_db.data.labels import encode, find_classes
from tensile_db.data.source import Source
from tensile_db.data.split import split
from tensile_db.data.stored_rows import StoredRows
from tensile_db.data.target_scaling import TargetScaling, find_scaling, read_numbers
from tensile_db.udf.request import DEFAULTS


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is learned, and of which rows."""

    name: str
    #: Places among the classes, int64 [rows], or standardised numbers, float32 [rows].
    values: npt.NDArray[Any]
    #: Labels in the order of the outputs; None for a number.
    classes: Sequence[Any] | None
    #: Of a number; None for classes.
    scaling: TargetScaling | None
    #: Places of rows, int64, ascending.
    training_rows: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]
    #: What whoever trains may not expect.
    surprises: Sequence[str]


def read_target(row: JobRow, source: Source, stored: StoredRows, named: Callable[[int], str]) -> Target:
    """Read the target and hold rows out; named: of a row by its place.

    Raises what data/ raises for targets and for rows.
    """
    column = source.target
    assert column is not None
    values = stored.values[len(source.features)]
    share = DEFAULTS["validation"] if row.validation is None else row.validation
    made: npt.NDArray[Any]
    classes: Sequence[Any] | None = None
    scaling: TargetScaling | None = None
    surprises: list[str] = []
    if source.task == "regression":
        numbers = read_numbers(values, column, named)
        training_rows, held_out = split(stored.count, share, row.seed, None)
        scaling = find_scaling(numbers[training_rows])
        made = scaling.standardise(numbers).astype(np.float32)
        surprises += unexpected.constant_target(column, numbers[training_rows])
    else:
        classes = find_classes(values, column, named)
        made = encode(values, column, classes, named)
        training_rows, held_out = split(stored.count, share, row.seed, made)
        surprises += unexpected.classes_not_held_out(share, classes, made[held_out])
        surprises += unexpected.many_classes(column, classes, is_asked="task" in row.options)
    surprises += unexpected.none_held_out(share, stored.count, len(held_out))
    return Target(
        name=column.name,
        values=made,
        classes=classes,
        scaling=scaling,
        training_rows=training_rows,
        held_out=held_out,
        surprises=surprises,
    )
