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


def test_regression_is_scored_by_squared_and_absolute_error():
    score = score_for(TargetScaling(mean=0.0, scale=1.0))
    score.add(torch.tensor([[1.0], [5.0]]), np.array([2.0, 2.0], dtype=np.float32))
    assert score.values() == {"loss": 5.0, "mse": 5.0, "rmse": pytest.approx(5**0.5), "mae": 2.0}


def test_errors_are_in_the_targets_own_unit_and_the_loss_is_what_the_network_learns():
    score = score_for(TargetScaling(mean=200_000.0, scale=50_000.0))
    score.add(torch.tensor([[0.0]]), np.array([0.5], dtype=np.float32))
    score.add(torch.tensor([[-1.0]]), np.array([-1.5]))
    assert score.values() == {"loss": 0.25, "mse": 25_000.0**2, "rmse": 25_000.0, "mae": 25_000.0}


def test_a_square_beyond_all_numbers_is_infinite_and_its_root_is_not():
    score = score_for(TargetScaling(mean=0.0, scale=1e200))
    score.add(torch.tensor([[0.0]]), np.array([2.0]))
    assert score.values() == {"loss": 4.0, "mse": math.inf, "rmse": 2e200, "mae": 2e200}


@pytest.mark.parametrize("scaling", [None, TargetScaling(mean=0.0, scale=1.0)])
def test_no_rows_have_no_score(scaling):
    assert score_for(scaling).values() == {}
