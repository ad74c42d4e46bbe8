"""A step captured in float16 equals autocast with a GradScaler bit for bit, also where it updates nothing."""

import pytest
import torch
from torch import nn

from tensile_db.capture.loss_scale import GROWTH_TRACKER, SCALE
from tensile_db.capture.precision import Precision
from tests.examples import one_in
from tests.unit.capture.eager import CLASSES, assert_bitwise, assert_model_bitwise
from tests.unit.capture.shared_layers import SharedAndGrouped

FLOAT16 = Precision.FLOAT16
OPTIONS = {"hidden_units": [16, 8], "dropout": 0.3}

#: So large that the first gradients are infinite, and those after some halvings are not.
TOO_LARGE = (2.0**24, 0)


def train(optimizer="adam", **more):
    return assert_bitwise("mlp", (6, 10), optimizer, options=OPTIONS, strict=True, precision=FLOAT16, **more)


def scale_of(walk):
    state = walk.state()
    return state[SCALE].item(), state[GROWTH_TRACKER].item()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_an_mlp_with_dropout_trains_in_float16_bitwise_as_with_a_grad_scaler(optimizer):
    walk = train(optimizer)
    assert walk.recomputed > 0
    assert (walk.skipped, scale_of(walk)) == (0, (2.0**16, 3))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_iterations_whose_gradients_are_not_finite_update_nothing_and_are_no_steps_of_the_optimizer(
    optimizer,
):
    walk = train(optimizer, iterations=12, scale=TOO_LARGE)
    assert 0 < walk.skipped < 12
    assert scale_of(walk)[0] == 2.0 ** (24 - walk.skipped)


@pytest.mark.slow
def test_the_scale_grows_after_two_thousand_finite_iterations():
    assert scale_of(train(iterations=2, scale=(8.0, 1998))) == (16.0, 0)
    assert scale_of(train(iterations=1, scale=(8.0, 1998))) == (8.0, 1999)


def test_a_regression_trains_in_float16_bitwise():
    train(target="values")


class Alike(nn.Module):
    """Two biases whose gradients are one tensor, and a weight that is used in three places."""

    def __init__(self):
        super().__init__()
        self.rest = SharedAndGrouped()
        self.one, self.other = nn.Parameter(torch.zeros(CLASSES)), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x):
        return self.rest(x) + (self.one + self.other)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [None, TOO_LARGE])
def test_gradients_that_share_their_storage_are_unscaled_once_each(scale):
    torch.manual_seed(3)
    walk = assert_model_bitwise(
        Alike(), (6, 8), "adam", iterations=12, strict=True, precision=FLOAT16, scale=scale
    )
    assert (walk.skipped > 0) == (scale is not None)


class Viewed(nn.Module):
    """Two biases whose gradients are views of one tensor, which eager PyTorch clones for neither."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, CLASSES)
        self.one, self.other = nn.Parameter(torch.zeros(CLASSES)), nn.Parameter(torch.ones(CLASSES))

    def forward(self, x):
        return self.head(x) + (self.one.view(1, CLASSES) + self.other.view(1, CLASSES))


def test_gradients_that_are_views_of_one_tensor_are_unscaled_once_where_a_grad_scaler_does_it_twice():
    torch.manual_seed(3)
    model = Viewed()
    # So that eager PyTorch has two tensors, too.
    model.other.register_hook(torch.clone)
    captured = Viewed()
    captured.load_state_dict(model.state_dict())
    assert_model_bitwise(captured, (6, 8), "adam", strict=True, precision=FLOAT16, eager=model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    one_in(3, ["resnet10t", "test_convnext", "test_efficientnet", "test_vit", "test_maxvit", "levit_128s"]),
)
def test_every_op_of_a_network_in_float16_keeps_its_promises(name):
    walk = assert_bitwise(
        name, (2, 3, 32, 32), "momentum", iterations=2, strict=True, precision=FLOAT16, scale=(64.0, 0)
    )
    assert walk.recomputed > 100
