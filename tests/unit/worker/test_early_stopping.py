"""Which epoch is the best, and when a training is over for that."""

from math import inf, nan

import pytest
import torch

from tensile_db.errors import InvalidRequest
from tensile_db.worker.jobs.checkpoints import Progress
from tensile_db.worker.jobs.early_stopping import is_over, require_rows_held_out, weights_of, with_epoch


def after(losses, patience):
    """Return the best epoch, and after which one the training was over, of those with these losses."""
    progress, over = Progress(), None
    for epoch, loss in enumerate(losses, 1):
        progress = with_epoch(progress, {"validation_loss": loss, "train_loss": nan}, epoch)
        if over is None and is_over(progress, epoch, patience):
            over = epoch
    return progress.best, over


@pytest.mark.parametrize(
    ("losses", "patience", "best", "over"),
    [
        ([3, 2, 1], 1, 3, None),
        ([3, 4], 1, 1, 2),
        ([3, 4, 2, 5, 6], 2, 3, 5),
        ([3, 4, 2, 5, 6], 1, 3, 2),
        # Equal is no better.
        ([3, 3, 3], 2, 1, 3),
        ([nan, 5, inf, nan], 2, 2, 4),
        ([-inf, 5], 3, 2, None),
        ([3, 4, 5], None, 1, None),
    ],
)
def test_the_best_is_the_first_with_the_least_loss(losses, patience, best, over):
    found, ended = after(losses, patience)
    assert found == {"epoch": best, "metrics": {"validation_loss": losses[best - 1]}}
    assert ended == over


def test_where_no_loss_is_a_number_none_is_the_best_and_the_patience_ends():
    assert after([nan, inf, nan], 2) == (None, 2)


def test_an_epoch_that_is_no_better_leaves_the_progress_as_it_is():
    progress = with_epoch(Progress(), {"validation_loss": 1.0}, 1)
    assert with_epoch(progress, {"validation_loss": 1.0}, 2) is progress
    assert with_epoch(progress, {}, 2) is progress


def test_nothing_is_over_before_it_has_begun():
    assert not is_over(Progress(), 0, 1)


def test_of_a_state_the_model_is_kept():
    state = {name: torch.zeros(1) for name in ("parameter/a", "buffer/b", "optimizer_state/a/exp_avg")}
    assert set(weights_of(state)) == {"parameter/a", "buffer/b"}


def test_rows_must_be_held_out():
    require_rows_held_out(1)
    with pytest.raises(InvalidRequest, match="no row is held out"):
        require_rows_held_out(0)
