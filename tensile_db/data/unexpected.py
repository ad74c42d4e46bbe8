"""What whoever trains may not expect of their columns, as sentences."""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tensile_db.data.columns import Column
from tensile_db.data.labels import Class
from tensile_db.data.statistics import LEAST_SPREAD

#: More different whole numbers than that may be meant as numbers.
_FEW_CLASSES = 20
#: Classes, columns or texts that a sentence names, and characters of each.
_MOST_NAMED = 5
_LONGEST = 60


def many_classes(column: Column, classes: Sequence[Class], *, is_asked: bool) -> list[str]:
    """Say that whole numbers are learned as classes, where there are many and nobody asked for either."""
    if is_asked or not column.is_integer or len(classes) <= _FEW_CLASSES:
        return []
    what = f'the whole numbers of column "{column.name}" are learned as {len(classes):,} classes'
    return [what + '; to predict the number, give options => \'{"task": "regression"}\'']


def new_classes(model: str, classes: Sequence[Class]) -> list[str]:
    """Say which classes the model that a training starts from does not know."""
    if not classes:
        return []
    what = "1 class is" if len(classes) == 1 else f"{len(classes):,} classes are"
    return [f'{what} new to the model "{model}" that the training starts from: {_named(classes)}']


def new_categories(model: str, column: str, texts: Sequence[str]) -> list[str]:
    """Say which texts of a column are no category of the model that a training starts from."""
    said = unknown_categories(model, column, texts)
    return [f"{each}; the training starts from it, and learns nothing from them" for each in said]


def larger_images(weights: str, shape: Sequence[int], size: Sequence[int]) -> list[str]:
    """Tell that images are made much larger for pretrained weights.

    shape: of the source's images, (height, width, channels); size: (height, width) of the network's.
    """
    height, width = shape[:2]
    if 2 * height * width >= size[0] * size[1]:
        return []
    said = f"images of {height} x {width} are made {size[0]} x {size[1]}, which the pretrained weights"
    shorter = 'a smaller "image_size", or of transformers weights that were imported for one, takes less time'
    return [f'{said} "{weights}" are made for; {shorter}']


def none_held_out(share: float, count: int, held_out: int) -> list[str]:
    """Say that no row is held out although a share was asked for; count: all rows, held_out: of these."""
    if share == 0.0 or held_out:
        return []
    # Of classes the last row is never held out.
    why = "each class has but one" if round(share * count) > 0 else f"{share:g} of them is too few"
    return [f"no row of {count:,} is held out for validation: {why}"]


def true_nowhere(column: Column, held_out: int) -> list[str]:
    """Say that no row is held out though a column tells which are; held_out: how many."""
    return [] if held_out else [f'no row is held out for validation: column "{column.name}" is true nowhere']


def classes_not_trained_on(classes: Sequence[Class]) -> list[str]:
    """Say of which classes all rows are held out."""
    if not classes:
        return []
    of = "1 class" if len(classes) == 1 else f"{len(classes):,} classes"
    return [f"all rows of {of} are held out, which the model will hardly predict: {_named(classes)}"]


def classes_not_held_out(
    share: float, classes: Sequence[Class], held_out: npt.NDArray[np.int64], *, is_told: bool = False
) -> list[str]:
    """Say of which classes no row is held out where some are.

    held_out: the places among the classes of the rows that are.  is_told: whether a column tells which are.
    """
    if share == 0.0 or len(held_out) == 0:
        return []
    is_held_out = np.bincount(held_out, minlength=len(classes)) > 0
    left_out = [classes[place] for place in np.flatnonzero(~is_held_out).tolist()]
    if not left_out:
        return []
    why = "" if is_told else ", for they have few rows"
    what = f"no row of {len(left_out):,} of {len(classes):,} classes is held out{why}"
    return [f"{what}; validation says nothing of them: {_named(left_out)}"]


def constant_target(column: Column, numbers: npt.NDArray[np.float64]) -> list[str]:
    """Say that a number to predict has one value in all rows that are trained on, of which `numbers` are."""
    if len(numbers) < 2 or float(numbers.max()) - float(numbers.min()) >= LEAST_SPREAD:
        return []
    what = f'column "{column.name}" has one value in all {len(numbers):,} rows that are trained on'
    return [f"{what}: there is nothing to learn"]


def two_numbers(column: Column, numbers: npt.NDArray[np.float64], *, is_asked: bool) -> list[str]:
    """Say that numbers are learned as such though there are but two, where nobody asked for it."""
    if is_asked or len(numbers) < 2 * _FEW_CLASSES or len(np.unique(numbers)) != 2:
        return []
    what = f'the numbers of column "{column.name}", of which there are but two, are learned as such'
    return [f"{what}; to learn them as classes, cast the column to integer or boolean in a view"]


def rare_categories(columns: Sequence[Column], counts: Sequence[int], rows: int) -> list[str]:
    """Say which columns of texts hardly have the same twice; counts: of categories, rows: trained on."""
    return [
        f'column "{column.name}" has {count:,} different texts in {rows:,} rows that are trained on: of other'
        " texts it tells nothing"
        for column, count in zip(columns, counts, strict=True)
        if count > _FEW_CLASSES and 2 * count > rows
    ]


def unknown_categories(model: str, column: str, texts: Sequence[str]) -> list[str]:
    """Say which texts of a column are no category of a model that predicts or is measured."""
    if not texts:
        return []
    are = "1 text is" if len(texts) == 1 else f"{len(texts):,} texts are"
    return [f'of column "{column}" {are} no category of the model "{model}": {_named(texts)}']


def constant_columns(columns: Sequence[Column], is_constant: Sequence[bool], count: int) -> list[str]:
    """Say which columns of features have one value in all rows that are trained on.

    is_constant: of each column, or of each element of the only one's arrays; count: rows trained on.
    """
    if len(columns) > 1:
        names = [column.name for column, one in zip(columns, is_constant, strict=True) if one]
    else:
        # Some elements of arrays are often constant: those of pixels at an image's border.
        names = [column.name for column in columns if all(is_constant)]
    if not names or count < 2:
        return []
    named = ", ".join(f'"{name}"' for name in names[:_MOST_NAMED])
    more = ", ..." if len(names) > _MOST_NAMED else ""
    if len(names) == 1:
        return [f"column {named} has one value in all {count:,} rows that are trained on: it tells nothing"]
    what = f"{len(names):,} columns have one value each in all {count:,} rows that are trained on"
    return [f"{what}, and tell nothing: {named}{more}"]


def _named(classes: Sequence[Class]) -> str:
    """Return some classes or texts, for a sentence."""
    named = ", ".join(_shown(label) for label in classes[:_MOST_NAMED])
    return named + (", ..." if len(classes) > _MOST_NAMED else "")


def _shown(label: Class) -> str:
    text = json.dumps(label, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f'{text[:_LONGEST]}..."'
