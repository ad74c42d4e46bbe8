"""What whoever trains is told of their columns, and what not."""

import numpy as np
import pytest

from tensile_db.data import unexpected
from tensile_db.data.columns import Column, Form

WHOLE = Column(name="price", form=Form.FIXED, wire=">i4", is_integer=True)
TEXT = Column(name="kind", form=Form.TEXT)


def test_many_whole_numbers_may_be_meant_as_numbers():
    (said,) = unexpected.many_classes(WHOLE, range(21), is_asked=False)
    assert said == (
        'the whole numbers of column "price" are learned as 21 classes; to predict the number,'
        """ give options => '{"task": "regression"}'"""
    )


@pytest.mark.parametrize(
    ("column", "classes", "is_asked"), [(WHOLE, 20, False), (WHOLE, 21, True), (TEXT, 21, False)]
)
def test_few_or_asked_for_or_of_texts_they_are_classes(column, classes, is_asked):
    assert unexpected.many_classes(column, range(classes), is_asked=is_asked) == []


def test_no_row_held_out_is_told_where_some_should_be():
    said = ["no row of 4 is held out for validation: 0.1 of them is too few"]
    assert unexpected.none_held_out(0.1, 4, 0) == said
    said = ["no row of 10 is held out for validation: each class has but one"]
    assert unexpected.none_held_out(0.1, 10, 0) == said
    assert unexpected.none_held_out(0.1, 6, 1) == []
    assert unexpected.none_held_out(0.0, 4, 0) == []


def test_classes_without_a_row_held_out_are_named_the_first_of_them():
    classes = ["it's", "b", True, 3, "ä", "f", "g"]
    (said,) = unexpected.classes_not_held_out(0.1, classes, np.array([1, 1], np.int64))
    assert said == (
        "no row of 6 of 7 classes is held out, for they have few rows; validation says nothing of them:"
        """ "it's", true, 3, "ä", "f", ..."""
    )
    assert unexpected.classes_not_held_out(0.1, classes, np.arange(7)) == []
    # That is told otherwise.
    assert unexpected.classes_not_held_out(0.1, classes, np.array([], np.int64)) == []


def test_columns_with_one_value_are_named():
    columns = [Column(name=name, form=Form.FIXED, wire=">f8") for name in "abcdefg"]
    (said,) = unexpected.constant_columns(columns, [False, True] + [False] * 5, 1234)
    assert said == 'column "b" has one value in all 1,234 rows that are trained on: it tells nothing'
    (said,) = unexpected.constant_columns(columns, [True] * 6 + [False], 9)
    assert said == (
        "6 columns have one value each in all 9 rows that are trained on, and tell nothing:"
        ' "a", "b", "c", "d", "e", ...'
    )
    assert unexpected.constant_columns(columns, [False] * 7, 9) == []
    # Of a single row there is but one value.
    assert unexpected.constant_columns(columns, [True] * 7, 1) == []


def test_a_number_to_predict_with_one_value_is_named():
    (said,) = unexpected.constant_target(WHOLE, np.full(1234, 7.5))
    assert (
        said
        == 'column "price" has one value in all 1,234 rows that are trained on: there is nothing to learn'
    )
    assert unexpected.constant_target(WHOLE, np.array([7.5, 7.5, 7.25])) == []
    # Of a single row there is but one value.
    assert unexpected.constant_target(WHOLE, np.array([7.5])) == []


def test_an_array_is_constant_where_all_of_its_elements_are():
    array = Column(name="x", form=Form.ARRAY, wire=">f8")
    assert unexpected.constant_columns([array], [True, False, True], 9) == []
    assert len(unexpected.constant_columns([array], [True, True, True], 9)) == 1


def test_classes_that_the_model_to_start_from_does_not_know_are_named():
    assert unexpected.new_classes("m", ()) == []
    assert unexpected.new_classes("m", ('a"b',)) == [
        '1 class is new to the model "m" that the training starts from: "a\\"b"'
    ]
    (said,) = unexpected.new_classes("m", tuple(range(1234)))
    assert said.startswith("1,234 classes are new to the model")
    assert said.endswith(": 0, 1, 2, 3, 4, ...")
