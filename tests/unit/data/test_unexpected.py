"""What whoever trains is told of their target, and what not."""

import numpy as np
import pytest

from tensile_db.data import unexpected
from tensile_db.data.columns import Column, Form
from tensile_db.data.split import split

WHOLE = Column(name="price", form=Form.FIXED, wire=">i4", is_integer=True)
TEXT = Column(name="kind", form=Form.TEXT)


@pytest.mark.parametrize(
    ("column", "classes", "is_asked", "told"),
    [
        (WHOLE, 21, False, True),
        (WHOLE, 20, False, False),
        (WHOLE, 21, True, False),
        (TEXT, 21, False, False),
    ],
)
def test_many_whole_numbers_may_be_meant_as_numbers(column, classes, is_asked, told):
    said = unexpected.of_classes(column, range(classes), is_asked=is_asked)
    assert [line.startswith('the whole numbers of column "price"') for line in said] == [True] * told


@pytest.mark.parametrize(("share", "count", "told"), [(0.1, 4, True), (0.1, 6, False), (0.0, 4, False)])
def test_no_row_held_out_is_told_where_some_should_be(share, count, told):
    _, held_out = split(count, share, 0, None)
    assert len(held_out) == (not told and share > 0)
    said = unexpected.of_held_out(share, count)
    assert said == ["no row is held out for validation: 0.1 of 4 rows is too few"] * told


def test_classes_without_a_row_held_out_are_named_the_first_of_them():
    classes = ["a", "b", "c", "d", "e", "f", "g"]
    held_out = np.array([1, 1], np.int64)
    (said,) = unexpected.of_few_rows(0.1, classes, held_out)
    assert said == (
        "of 6 of 7 classes no row is held out, for they have few, and so validation says nothing of them:"
        " 'a', 'c', 'd', 'e', 'f', ..."
    )
    assert unexpected.of_few_rows(0.1, classes, np.arange(7)) == []
    assert unexpected.of_few_rows(0.0, classes, np.array([], np.int64)) == []
