"""Which epoch is the best, and when a training is over for that."""

from math import inf, nan

import pytest

from tensile_db.errors import InvalidRequest
from tensile_db.worker.jobs.checkpoints import Progress
from tensile_db.worker.jobs.early_stopping import check_patience, is_over, with_epoch


def after(losses, patience):
    """Return the best epoch, and after which one the training was over, of those with these losses."""
    progress, over = Progress(), None
    for epoch, loss in enumerate(losses, 1):
        progress = with_epoch(progress, {"validation_loss": loss, "train_loss": nan}, epoch)
        if over is None and is_over(progress, epoch, patience):
            over = epoch
    return progress, over


@pytest.mark.parametrize(
    ("losses", "patience", "best", "over"),
    [
        ([3, 2, 1], 1, 3, None),
        ([3, 4], 1, 1, 2),
        ([3, 4, 2, 5, 6], 2, 3, 5),
        ([3, 4, 2, 5, 6], 1, 3, 2),
        # Equal is no better, nor is what rounding makes smaller.
        ([3, 3, 3 - 1e-9], 2, 1, 3),
        ([0, 0], 1, 1, 2),
        ([nan, 5, inf, nan], 2, 2, 4),
        ([inf, 5], 3, 2, None),
        ([3, 4, 5], None, 1, None),
    ],
)
def test_the_best_is_the_first_with_the_least_loss(losses, patience, best, over):
    found, ended = after(losses, patience)
    assert (found.best_epoch, found.best_metrics) == (best, {"validation_loss": losses[best - 1]})
    assert ended == over


def test_where_no_loss_is_a_number_none_is_the_best_and_the_patience_ends():
    found, ended = after([nan, inf, nan], 2)
    assert (found, ended) == (Progress(), 2)


def test_an_epoch_that_is_no_better_leaves_the_progress_as_it_is():
    progress = with_epoch(Progress(), {"validation_loss": 1.0}, 1)
    assert with_epoch(progress, {"validation_loss": 1.0}, 2) is progress
    assert with_epoch(progress, {}, 2) is progress


def test_nothing_is_over_before_it_has_begun():
    assert not is_over(Progress(), 0, 1)


def test_rows_must_be_held_out():
    check_patience(None, 0)
    check_patience(3, 1)
    with pytest.raises(InvalidRequest, match="no row is held out"):
        check_patience(3, 0)


@pytest.mark.parametrize("patience", [0, -1, True, 3.0, "3"])
def test_what_came_past_the_functions_is_refused(patience):
    with pytest.raises(InvalidRequest, match='option "patience" cannot be'):
        check_patience(patience, 1)
