"""Trainings whose gradients are clipped by their norm, against eager PyTorch's, bit for bit."""

from dataclasses import replace

import pytest

from tensile_db.capture.clipping import GRADIENT_NORM
from tensile_db.capture.precision import Precision
from tests.steps.bitwise_runs import (
    as_planned,
    capture_once,
    differing,
    losses_of,
    skips_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import steep, training_of

pytestmark = pytest.mark.slow


def trained(device, training, share, policy="tensile"):
    step, state = capture_once(training)
    plan = tight_plan(step, device, share, policy)
    return train_here(device, as_planned(step, plan, device), state, plan.program, training.batches())


def clipped(network, optimizer="adamw", max_gradient_norm=0.05, batch=4):
    return replace(training_of(network, optimizer, batch), max_gradient_norm=max_gradient_norm)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_a_training_with_clipped_gradients_equals_eager_pytorch(make_device, optimizer):
    training = clipped("mlp", optimizer, 0.5)
    got, results = trained(make_device(1 << 30), training, 1.0)
    want, losses = train_eagerly(training)
    assert (differing(got, want), losses_of(results)) == ([], losses)
    assert differing(got, train_eagerly(replace(training, max_gradient_norm=None))[0])


@pytest.mark.parametrize(
    ("network", "policy"),
    [
        ("vgg with dropout", "tensile"),
        ("transformer", "tensile"),
        ("lstm", "tensile"),
        *(pytest.param(name, "tensile", marks=pytest.mark.thorough) for name in ("densenet", "resnet")),
        ("vit", "auto_exact"),
    ],
)
def test_within_little_memory_too(make_device, network, policy):
    training = clipped(network)
    got, results = trained(make_device(1 << 30), training, 0.8, policy)
    want, losses = train_eagerly(training)
    assert (differing(got, want), losses_of(results)) == ([], losses)


def test_the_norm_is_told_and_one_that_is_small_changes_nothing(make_device):
    training = clipped("mlp", "sgd", 1e6)
    got, results = trained(make_device(1 << 30), training, 1.0)
    want, _ = train_eagerly(replace(training, max_gradient_norm=None))
    assert differing(got, want) == []
    norms = [float(result.outputs[GRADIENT_NORM]) for result in results]
    assert len(norms) == training.iterations
    assert all(0 < norm < 1e6 for norm in norms)


def test_gradients_in_float16_are_unscaled_before_they_are_clipped(make_device):
    training = replace(clipped("mlp", "momentum", 0.5), precision=Precision.FLOAT16, iterations=6)
    training = replace(training, build=steep)
    got, results = trained(make_device(1 << 30), training, 1.0)
    assert 0 < skips_of(results) < training.iterations
    assert differing(got, train_eagerly(training)[0]) == []
