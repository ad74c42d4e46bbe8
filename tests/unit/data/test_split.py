"""Held-out rows and the order of epochs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile_db.data.split import shuffled, split
from tensile_db.errors import BadData


@given(
    codes=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    validation=st.floats(0, 0.95),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_every_row_is_in_one_part_and_every_class_keeps_a_training_row(codes, validation, seed):
    labels = np.array(codes, np.int64)
    training, held_out = split(len(codes), validation, seed, labels)
    assert sorted([*training.tolist(), *held_out.tolist()]) == list(range(len(codes)))
    assert set(labels[training].tolist()) == set(codes)


def test_the_same_share_of_each_class_is_held_out():
    labels = np.array([0] * 80 + [1] * 20, np.int64)
    _, held_out = split(100, 0.25, 1, labels)
    assert np.bincount(labels[held_out]).tolist() == [20, 5]


def test_many_small_classes_together_give_the_share():
    labels = np.repeat(np.arange(10), 4)
    training, held_out = split(40, 0.1, 1, labels)
    assert len(held_out) == 4
    assert np.bincount(labels[held_out]).max() == 1
    assert len(training) == 36


def test_a_class_of_one_row_is_trained_on_and_the_others_make_up_for_it():
    labels = np.array([0, 1, 2, 2, 2, 2], np.int64)
    _, held_out = split(6, 0.5, 1, labels)
    assert labels[held_out].tolist() == [2, 2, 2]


def test_equal_seeds_give_equal_splits_and_others_do_not():
    first, again, other = (split(1000, 0.1, seed, None)[1].tolist() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_an_epochs_order_depends_on_the_seed_and_its_number_alone():
    rows = np.arange(100)
    assert shuffled(rows, 3, 5).tolist() == shuffled(rows, 3, 5).tolist()
    assert shuffled(rows, 3, 5).tolist() != shuffled(rows, 3, 6).tolist()
    assert sorted(shuffled(rows, 3, 5).tolist()) == list(range(100))


def test_no_rows_are_refused():
    with pytest.raises(BadData, match="the source has no rows"):
        split(0, 0.1, 1, None)
