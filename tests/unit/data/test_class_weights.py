"""Weights of classes: by how many rows each has, or as they are given."""

import numpy as np
import pytest

from tensile_db.data.class_weights import class_weights
from tensile_db.errors import UnknownName


def test_balanced_classes_have_the_same_part_whatever_their_rows():
    codes = np.array([0] * 90 + [1] * 9 + [2])
    weights = class_weights("balanced", ("a", "b", "c"), codes)
    assert weights.dtype == np.float32
    assert (weights * [90, 9, 1]).tolist() == pytest.approx(3 * [100 / 3])


def test_a_class_without_rows_weighs_one_and_is_not_counted():
    # It is of the model to start from, or all of its rows are held out.
    weights = class_weights("balanced", (1, 2, 3), np.array([0, 0, 0, 2]))
    assert weights.tolist() == pytest.approx([4 / 6, 1, 2])


@pytest.mark.parametrize(
    ("classes", "asked", "weights"),
    [
        (("down", "up"), {"up": 2.5}, [1, 2.5]),
        ((3, 10), {"10": 4, "3": 0.5}, [0.5, 4]),
        ((False, True), {"true": 9}, [1, 9]),
        (('a "b"', ""), {"": 3}, [1, 3]),
    ],
)
def test_given_ones_go_by_the_class_as_text_and_others_weigh_one(classes, asked, weights):
    assert class_weights(asked, classes, np.array([0, 1])).tolist() == weights


def test_what_is_no_class_is_refused():
    with pytest.raises(UnknownName) as refusal:
        class_weights({"upp": 2}, ("down", "up"), np.array([0, 1]))
    assert refusal.value.sqlstate == "22023"
    assert refusal.value.message == 'unknown class in class_weights "upp"'
    assert refusal.value.hint == 'Did you mean "up"?'
