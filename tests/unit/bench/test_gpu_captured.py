"""Steps that one process of the GPU bench captures and others find."""

import pytest

from bench.gpu.captured import captured
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of


def never():
    raise AssertionError("it is captured again")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "optimizer"), [("vgg with dropout", "adam"), ("vit", "adamw"), ("resnet", "momentum")]
)
def test_a_step_is_what_it_was_when_it_is_found_again(tmp_path, network, optimizer):
    path = tmp_path / "below" / "step.pickle"
    step, _ = capture_once(training_of(network, optimizer, 8))
    assert captured(path, lambda: step) is step
    found = captured(path, never)
    assert found is not step
    assert (found.graph, found.calls, found.state) == (step.graph, step.calls, step.state)
    assert (found.inputs, found.outputs, found.tf32) == (step.inputs, step.outputs, step.tf32)
    assert found.scalars(3) == step.scalars(3)
    assert [each.name for each in path.parent.iterdir()] == ["step.pickle"]


def test_without_a_folder_a_step_is_captured_each_time():
    steps = iter("ab")
    assert [captured(None, lambda: next(steps)) for _ in range(2)] == ["a", "b"]
