"""What a training makes of its losses, scaled and not."""

import math

import pytest
import torch

from tensile_db.capture.loss_scale import NEXT_SCALE, SKIPPED
from tensile_db.errors import NonFiniteLoss
from tensile_db.worker.jobs.checkpoints import Progress
from tensile_db.worker.jobs.losses import (
    after_iteration,
    epoch_loss,
    gradient_metrics,
    require_finite,
    require_scored,
)

NONE_SO_FAR = Progress()


def told(loss, *, skipped=None, scale=1024.0):
    outputs = {"loss": torch.tensor(loss)}
    if skipped is not None:
        outputs |= {SKIPPED: torch.tensor(float(skipped)), NEXT_SCALE: torch.tensor(scale)}
    return outputs


def after(*iterations):
    progress = NONE_SO_FAR
    for outputs in iterations:
        progress = after_iteration(progress, outputs, when="iteration 7 (epoch 2)")
    return progress


def test_losses_are_summed_up_and_averaged():
    progress = after(told(1.0), told(2.0))
    assert (progress.iteration, progress.skipped, progress.loss_scale) == (2, 0, None)
    assert epoch_loss(progress, epoch=1) == 1.5
    assert gradient_metrics(progress) == {}


@pytest.mark.parametrize("loss", [math.inf, math.nan])
@pytest.mark.parametrize("skipped", [None, False])
def test_a_loss_that_is_not_finite_ends_a_training_that_was_updated_by_it(loss, skipped):
    with pytest.raises(NonFiniteLoss, match=rf"the loss became {loss} in iteration 7 \(epoch 2\)"):
        after(told(loss, skipped=skipped))


def test_an_iteration_that_updated_nothing_counts_as_one_but_not_as_an_update():
    progress = after(
        told(math.inf, skipped=True), told(3.0, skipped=True, scale=512.0), told(1.0, skipped=False)
    )
    assert (progress.iteration, progress.skipped) == (3, 2)
    assert epoch_loss(progress, epoch=1) == 2.0
    assert gradient_metrics(progress) == {"loss_scale": 1024.0, "skipped_updates": 2.0}


def test_a_training_whose_gradients_are_infinite_at_any_scale_ends():
    assert after(told(1.0, skipped=True, scale=2.0**-13)).skipped == 1
    with pytest.raises(NonFiniteLoss, match=r"not finite in iteration 7 .* falls to 6\.10352e-05") as caught:
        after(told(1.0, skipped=True, scale=2.0**-14))
    assert "learning_rate" in caught.value.hint
    assert "bfloat16" in caught.value.hint
    # Small as it is, it did.
    assert after(told(1.0, skipped=False, scale=2.0**-14)).skipped == 0


def test_an_epoch_without_a_finite_loss_has_none():
    with pytest.raises(NonFiniteLoss, match="epoch 3"):
        epoch_loss(after(told(math.nan, skipped=True)), epoch=3)


def test_of_the_rows_held_out_the_loss_alone_decides():
    require_scored({})
    require_scored({"loss": 4.0, "mse": math.inf})
    with pytest.raises(NonFiniteLoss, match="the validation's loss became nan in the last epoch"):
        require_scored({"loss": math.nan, "mse": math.nan})


def test_a_parameter_that_is_not_finite_is_refused_and_a_mask_is_not():
    state = {"parameter/first.weight": torch.ones(2), "buffer/mask": torch.tensor([0.0, -math.inf])}
    require_finite(state | {"optimizer_state/first.weight/momentum": torch.tensor([math.inf])})
    with pytest.raises(NonFiniteLoss, match=r'the parameter "last\.bias" is not finite after the last'):
        require_finite(state | {"parameter/last.bias": torch.tensor([1.0, math.nan])})
