import math

import numpy as np
import pytest
import torch

from tensile_db.data.target_scaling import TargetScaling
from tensile_db.worker.jobs.scores import score_for


def test_classification_is_scored_by_cross_entropy_and_accuracy_over_all_rows():
    score = score_for(None)
    score.add(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), np.array([1, 0]))
    score.add(torch.tensor([[9.0, 0.0]]), np.array([1]))
    assert score.values() == {
        "loss": pytest.approx((0.6931472 + 0.0001234 + 9.0001234) / 3, abs=1e-6),
        "accuracy": pytest.approx(1 / 3),
        "balanced_accuracy": pytest.approx(1 / 2),
        "macro_f1": pytest.approx((2 * 1 / 4 + 0) / 2),
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        # The row of the first class scores less than one of the second, and like the other.
        "roc_auc": 0.75,
    }


def test_in_balanced_accuracy_classes_count_alike_and_those_without_rows_do_not():
    score = score_for(None)
    found, wanted = [0] * 97 + [1] * 3, [0] * 90 + [1] * 8 + [3] * 2
    for begin in range(0, 100, 32):
        part = slice(begin, begin + 32)
        score.add(torch.eye(4)[found[part]], np.array(wanted[part]))
    values = score.values()
    assert values["accuracy"] == 0.91
    assert values["balanced_accuracy"] == pytest.approx((1 + 1 / 8 + 0) / 3)


#: predicted, actual -> rows.
_TWO = {(0, 0): 50, (0, 1): 7, (1, 0): 3, (1, 1): 20}
_NONE_SAID = {(0, 0): 5, (0, 1): 4}
_THREE = {(0, 0): 5, (1, 1): 4, (0, 1): 2, (3, 0): 1, (2, 2): 6}


@pytest.mark.parametrize(
    ("rows", "classes", "expected"),
    [
        (
            _TWO,
            2,
            {"precision": 20 / 23, "recall": 20 / 27, "f1": 40 / 50, "macro_f1": (100 / 110 + 40 / 50) / 2},
        ),
        (_NONE_SAID, 2, {"precision": 0, "recall": 0, "f1": 0, "macro_f1": 10 / 14 / 2}),
        # The fourth class has no rows, and is predicted of one.
        (_THREE, 5, {"macro_f1": (10 / 13 + 8 / 10 + 12 / 12 + 0) / 4}),
        ({(0, 1): 3, (1, 1): 1}, 2, {"macro_f1": (0 + 2 / 5) / 2}),
    ],
)
def test_precision_recall_and_f1_are_those_of_the_confusion_matrix(rows, classes, expected):
    pairs = [pair for pair, count in rows.items() for _ in range(count)]
    np.random.default_rng(1).shuffle(pairs)
    predicted, actual = np.array(pairs).T
    score = score_for(None)
    for part in np.array_split(np.arange(len(pairs)), 3):
        score.add(torch.eye(classes)[torch.from_numpy(predicted[part])], actual[part])
    values = score.values()
    names = {"precision", "recall", "f1", "macro_f1"}
    assert {name: values[name] for name in names & values.keys()} == pytest.approx(expected)


def test_regression_is_scored_by_squared_and_absolute_error():
    score = score_for(TargetScaling(mean=0.0, scale=1.0))
    score.add(torch.tensor([[1.0], [5.0]]), np.array([2.0, 2.0], dtype=np.float32))
    # There is no r2 of targets that are all one.
    assert score.values() == {"loss": 5.0, "mse": 5.0, "rmse": pytest.approx(5**0.5), "mae": 2.0}


def test_errors_are_in_the_targets_own_unit_and_the_loss_is_what_the_network_learns():
    score = score_for(TargetScaling(mean=200_000.0, scale=50_000.0))
    score.add(torch.tensor([[0.0]]), np.array([0.5], dtype=np.float32))
    score.add(torch.tensor([[-1.0]]), np.array([-1.5]))
    assert score.values() == {"loss": 0.25, "mse": 25_000.0**2, "rmse": 25_000.0, "mae": 25_000.0, "r2": 0.75}


def test_a_square_beyond_all_numbers_is_infinite_and_its_root_is_not():
    score = score_for(TargetScaling(mean=0.0, scale=1e200))
    score.add(torch.tensor([[0.0]]), np.array([2.0]))
    assert score.values() == {"loss": 4.0, "mse": math.inf, "rmse": 2e200, "mae": 2e200}


def test_the_area_under_the_roc_curve_is_the_share_of_pairs_in_order():
    random = np.random.default_rng(3)
    margins = random.integers(0, 20, 300) / 10
    is_second = random.random(300) < 0.3
    score = score_for(None)
    for part in (slice(0, 100), slice(100, 101), slice(101, 300)):
        outputs = np.stack([np.zeros(300), margins], 1)[part].astype(np.float32)
        score.add(torch.from_numpy(outputs), is_second[part].astype(np.int64))
    first, second = margins[~is_second][:, None], margins[is_second]
    pairs = (first < second) + 0.5 * (first == second)
    assert score.values()["roc_auc"] == pytest.approx(pairs.mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("outputs", "target"),
    [
        (torch.eye(2), [1, 1]),
        (torch.eye(3), [0, 1, 1]),
        (torch.tensor([[1.0, 0.0], [math.nan, 0.0]]), [0, 1]),
    ],
)
def test_there_is_no_area_under_the_roc_curve_of_one_class_or_three_or_of_nan(outputs, target):
    score = score_for(None)
    score.add(outputs, np.array(target))
    assert "roc_auc" not in score.values()


def test_r2_is_the_part_of_the_spread_that_is_predicted():
    random = np.random.default_rng(4)
    # Far from the training's mean, from which the standardised are counted.
    wanted = random.normal(3e7, 2, 200)
    found = wanted + random.normal(0, 1, 200)
    score = score_for(TargetScaling(mean=7.0, scale=1e-9))
    for part in (slice(0, 150), slice(150, 200)):
        score.add(torch.from_numpy(found[part][:, None]), wanted[part])
    want = 1 - ((found - wanted) ** 2).sum() / ((wanted - wanted.mean()) ** 2).sum()
    assert score.values()["r2"] == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("scaling", [None, TargetScaling(mean=0.0, scale=1.0)])
def test_no_rows_have_no_score(scaling):
    assert score_for(scaling).values() == {}
