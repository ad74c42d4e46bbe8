"""What a training job learns, and which of its rows are held out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.catalog.jobs import JobRow
from tensile_db.data import unexpected
from tensile_db.data.class_weights import class_weights
from tensile_db.data.labels import Class, encode, find_classes, widen_classes
from tensile_db.data.source import Source
from tensile_db.data.split import split
from tensile_db.data.stored_rows import StoredRows
from tensile_db.data.target_scaling import TargetScaling, find_scaling, learned_numbers, read_numbers
from tensile_db.errors import BadData, InvalidRequest
from tensile_db.udf.options import check_option
from tensile_db.udf.request import DEFAULTS
from tensile_db.worker.jobs.initial_model import InitialModel


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is learned, and of which rows."""

    name: str
    #: Places among the classes, int64 [rows], or standardised numbers, float32 [rows].
    values: npt.NDArray[Any]
    #: Labels in the order of the outputs; None for a number.
    classes: Sequence[Any] | None
    #: Of each in the loss, float32 [classes]; None: all rows count alike.
    class_weights: npt.NDArray[np.float32] | None
    #: Of a number; None for classes.
    scaling: TargetScaling | None
    #: Places of rows, int64, ascending.
    training_rows: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]
    #: What whoever trains may not expect.
    surprises: Sequence[str]


def read_target(
    row: JobRow,
    source: Source,
    stored: StoredRows,
    named: Callable[[int], str],
    initial: InitialModel | None,
) -> Target:
    """Read the target and hold rows out; named: of a row by its place; initial: the model to start from.

    Raises what data/ raises for targets and for rows.
    """
    column = source.target
    assert column is not None
    values = stored.values[len(source.features)]
    share = DEFAULTS["validation"] if row.validation is None else row.validation
    made: npt.NDArray[Any]
    classes: Sequence[Any] | None = None
    weights: npt.NDArray[np.float32] | None = None
    scaling: TargetScaling | None = None
    surprises: list[str] = []
    if initial is not None:
        _require_task(initial, source.task)
    if source.task == "regression":
        numbers = read_numbers(values, column, named)
        training_rows, held_out = _split(source, stored, share, row.seed, None)
        known = None if initial is None else initial.scaling
        scaling = find_scaling(numbers[training_rows]) if known is None else known
        made = learned_numbers(scaling, numbers, column, named)
        surprises += unexpected.constant_target(column, numbers[training_rows])
        surprises += unexpected.two_numbers(column, numbers[training_rows], is_asked="task" in row.options)
    else:
        if initial is None or initial.classes is None:
            classes = find_classes(values, column, named)
        else:
            classes = widen_classes(values, column, initial.classes, named)
            surprises += unexpected.new_classes(initial.name, classes[len(initial.classes) :])
        made = encode(values, column, classes, named)
        training_rows, held_out = _split(source, stored, share, row.seed, made)
        # A model to start from may know classes of which no row is here: these are not missing.
        there, trained_on = np.unique(made), np.unique(made[training_rows])
        if initial is None and len(trained_on) == 1:
            raise BadData(
                f'column "{column.name}" holds one class only in the rows that are trained on',
                hint="Have rows of two classes or more that are not held out.",
            )
        surprises += unexpected.classes_not_trained_on(
            [classes[place] for place in np.setdiff1d(there, trained_on)]
        )
        surprises += unexpected.classes_not_held_out(
            share,
            [classes[place] for place in there],
            np.searchsorted(there, made[held_out]),
            is_told=source.held_out is not None,
        )
        weights = _class_weights(row, classes, made[training_rows])
        surprises += unexpected.many_classes(column, classes, is_asked="task" in row.options)
    if source.held_out is None:
        surprises += unexpected.none_held_out(share, stored.count, len(held_out))
    else:
        surprises += unexpected.true_nowhere(source.held_out, len(held_out))
    return Target(
        name=column.name,
        values=made,
        classes=classes,
        class_weights=weights,
        scaling=scaling,
        training_rows=training_rows,
        held_out=held_out,
        surprises=surprises,
    )


def _split(
    source: Source, stored: StoredRows, share: float, seed: int, codes: npt.NDArray[np.int64] | None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of the training rows and of those held out, as `split` does, or as a column tells."""
    if source.held_out is None:
        return split(stored.count, share, seed, codes)
    told = stored.values[source.columns.index(source.held_out)]
    assert isinstance(told, np.ndarray), "truth values"
    if told.all():
        raise BadData(
            f'column "{source.held_out.name}" is true in all rows: none is left to train on',
            hint="Have it be false in the rows to train on.",
        )
    return np.flatnonzero(told == 0), np.flatnonzero(told)


def _class_weights(
    row: JobRow, classes: Sequence[Class], codes: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32] | None:
    asked = row.options.get("class_weights")
    if asked is None:
        return None
    # A row may have come into the catalog past the functions.
    check_option("class_weights", asked)
    return class_weights(asked, classes, codes)


def _require_task(initial: InitialModel, task: str | None) -> None:
    """Refuse a model to start from that predicts something else than is to be learned."""
    if (initial.classes is None) == (task == "regression"):
        return
    classes, number = "classes", "a number"
    predicts, target = (number, classes) if initial.classes is None else (classes, number)
    raise InvalidRequest(
        f'the model "{initial.name}" that the training starts from predicts {predicts}, and the target is'
        f" {target}",
        hint='Leave "start_from" out, or name another target.',
    )
