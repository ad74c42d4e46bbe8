"""Plans of the default policy, whose ops run in another order than eager's, give eager's bits."""

import pytest

from tests.steps.bitwise_runs import (
    as_planned,
    capture_once,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import training_of

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]


@pytest.mark.parametrize(
    ("network", "optimizer", "share"),
    [
        ("vgg with dropout", "adamw", 0.5),
        ("resnet", "momentum", 0.5),
        pytest.param("resnet", "adam", 0.35, marks=pytest.mark.thorough),
        ("vit", "adamw", 0.4),
    ],
)
def test_training_under_a_tight_budget_equals_eager_pytorch(make_device, network, optimizer, share):
    device, training = make_device(1 << 30), training_of(network, optimizer, 8)
    step, state = capture_once(training)
    plan = tight_plan(step, device, share, policy="auto")
    got, results = train_here(device, as_planned(step, plan, device), state, plan.program, training.batches())
    want, losses = train_eagerly(training)
    assert list(plan.plan.order) != [op.id for op in step.graph.ops]
    assert differing(got, want) == []
    assert losses_of(results) == losses
    assert all(result.swapped_in_nbytes > 0 or result.recomputed_ops > 0 for result in results)
    assert all(result.peak_nbytes <= plan.program.guaranteed_peak_nbytes for result in results)
