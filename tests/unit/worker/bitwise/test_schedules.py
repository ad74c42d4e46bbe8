"""Trainings whose learning rate changes, against eager PyTorch's with LambdaLR, bit for bit."""

from dataclasses import replace

import pytest

from tensile_db.capture.precision import Precision
from tests.steps.bitwise_runs import (
    capture_once,
    differing,
    losses_of,
    skips_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import steep, training_of, with_schedule


def trained(device, training, share):
    step, state = capture_once(training)
    plan = tight_plan(step, device, share)
    return train_here(device, step, state, plan.program, training.batches())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "name"),
    [("sgd", "cosine"), ("momentum", "linear"), ("adam", "cosine"), ("adamw", "linear")],
)
def test_a_training_with_a_schedule_equals_eager_pytorch(make_device, optimizer, name):
    training = with_schedule(training_of("mlp", optimizer, 4), name)
    got, results = trained(make_device(1 << 30), training, 1.0)
    want, losses = train_eagerly(training)
    assert (differing(got, want), losses_of(results)) == ([], losses)
    assert differing(got, train_eagerly(replace(training, schedule=None))[0])


def test_one_graph_serves_all_learning_rates_that_change():
    # So latencies that were measured of one serve the others.
    trainings = [with_schedule(training_of("mlp", "adamw", 4), name) for name in ("linear", "constant")]
    first, second = (capture_once(training)[0] for training in trainings)
    assert first.graph.digest == second.graph.digest
    assert first.scalars(5) != second.scalars(5)


def test_with_a_loss_scale_updates_count_and_iterations_do_not(make_device):
    training = with_schedule(training_of("mlp", "momentum", 4))
    training = replace(training, build=steep, precision=Precision.FLOAT16)
    got, results = trained(make_device(1 << 30), training, 1.0)
    assert 0 < skips_of(results) < training.iterations
    assert differing(got, train_eagerly(training)[0]) == []
