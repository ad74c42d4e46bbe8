"""What whoever trains may not expect of their target, as sentences."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensile_db.data.columns import Column
from tensile_db.data.labels import Class

#: Whole numbers of so many different values may be meant as numbers.
_FEW_CLASSES = 20
_MOST_NAMED = 5


def of_classes(column: Column, classes: Sequence[Class], *, is_asked: bool) -> list[str]:
    """Say that whole numbers are learned as classes, where there are many and nobody asked for either."""
    if is_asked or not column.is_integer or len(classes) <= _FEW_CLASSES:
        return []
    what = f'the whole numbers of column "{column.name}" are learned as {len(classes):,} classes'
    return [what + '; to predict the number, give options => \'{"task": "regression"}\'']


def of_held_out(share: float, count: int) -> list[str]:
    """Say that no row is held out although a share of them is to be; count: all rows."""
    if share == 0.0 or round(share * count) > 0:
        return []
    return [f"no row is held out for validation: {share:g} of {count:,} rows is too few"]


def of_few_rows(share: float, classes: Sequence[Class], held_out: npt.NDArray[np.int64]) -> list[str]:
    """Say of which classes no row is held out; held_out: the places among the classes of those that are."""
    if share == 0.0:
        return []
    is_held_out = np.bincount(held_out, minlength=len(classes)) > 0
    left_out = [repr(classes[place]) for place in np.flatnonzero(~is_held_out).tolist()]
    if not left_out:
        return []
    named = ", ".join(left_out[:_MOST_NAMED]) + (", ..." if len(left_out) > _MOST_NAMED else "")
    what = f"of {len(left_out):,} of {len(classes):,} classes no row is held out, for they have few"
    return [f"{what}, and so validation says nothing of them: {named}"]
