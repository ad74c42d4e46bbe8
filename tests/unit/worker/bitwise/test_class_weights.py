"""Trainings whose classes have weights in the loss, against eager PyTorch's cross_entropy, bit for bit."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tensile_db.capture.precision import Precision
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tests.steps.bitwise_runs import (
    CLASSES,
    Training,
    as_planned,
    capture_once,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
    vanilla_peak_nbytes,
)
from tests.steps.small_networks import training_of

pytestmark = pytest.mark.slow

#: Classes whose scores are large beside all else.
MANY = 500
WEIGHTS = (0.25, 3.0, 1.0, 17.3, 0.01)
assert len(WEIGHTS) == CLASSES


@pytest.mark.parametrize(
    ("network", "optimizer", "policy", "precision"),
    [
        ("mlp", "adam", "tensile", Precision.FLOAT32),
        ("vgg with dropout", "momentum", "auto", Precision.FLOAT32),
        ("mlp", "momentum", "auto", Precision.FLOAT16),
    ],
)
def test_a_training_with_weights_equals_eager_pytorch(make_device, network, optimizer, policy, precision):
    training = replace(training_of(network, optimizer, 8), class_weights=WEIGHTS, precision=precision)
    device = make_device(1 << 30)
    step, state = capture_once(training)
    plan = tight_plan(step, device, 0.8, policy)
    got, results = train_here(device, as_planned(step, plan, device), state, plan.program, training.batches())
    want, losses = train_eagerly(training)
    assert (differing(got, want), losses_of(results)) == ([], losses)
    assert differing(got, train_eagerly(replace(training, class_weights=None))[0])


def test_images_that_are_bytes_come_with_weights_too(make_device):
    training = replace(
        training_of("resnet", "momentum", 4), class_weights=WEIGHTS, byte_channels=1, iterations=2
    )
    device = make_device(1 << 30)
    step, state = capture_once(training)
    assert [step.graph.tensors[view.tensor].name for view in step.inputs] == [
        "features",
        "target",
        "class_weights",
        "normalisation",
    ]
    plan = tight_plan(step, device, 0.8)
    got, _ = train_here(device, step, state, plan.program, training.batches())
    assert differing(got, train_eagerly(training)[0]) == []


def test_the_gradient_of_the_loss_is_made_in_parts_and_keeps_its_bits(make_device):
    training = Training(
        build=_many_classes,
        shape=(2048, 4),
        optimizer="momentum",
        class_weights=tuple(1 + place / 7 for place in range(MANY)),
    )
    device = make_device(1 << 30)
    step, state = capture_once(training)
    share = 0.8 * lower_bound_peak_nbytes(step.graph) / vanilla_peak_nbytes(step.graph)
    plan = tight_plan(step, device, share, "auto_exact")
    backward = next(op.id for op in step.graph.ops if "nll_loss_backward" in op.target)
    assert any(backward in split.ops for split in plan.plan.splits)
    got, results = train_here(device, as_planned(step, plan, device), state, plan.program, training.batches())
    want, losses = train_eagerly(training)
    assert (differing(got, want), losses_of(results)) == ([], losses)


def _many_classes():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(4, MANY)
