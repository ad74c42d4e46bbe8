"""What a network's own code raises is told as such: its name, its file and line, and what would help."""

import sys
from importlib.metadata import EntryPoint

import pytest
import torch
from torch import nn

from tensile_db.capture.fakes import cpu_layouts
from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.capture.networks import architectures
from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step
from tensile_db.errors import InvalidRequest

CORRECT, SHAPES = "Correct the architecture's own code.", "or correct the architecture's own code"


class Own(nn.Module):
    """A network whose forward pass is a function of a linear layer and the features."""

    def __init__(self, forward):
        super().__init__()
        self.linear = nn.Linear(5, 8)
        self.run = forward

    def forward(self, x):
        return self.run(self.linear, x)


def capture(forward):
    return capture_train_step(
        Own(forward),
        batch_shape=(32, 5),
        target="classes",
        optimizer=configure("sgd"),
        architecture="theirs",
    )


@pytest.mark.parametrize(
    ("forward", "said", "hint"),
    [
        (lambda _, x: x / (1 // 0), "cannot run on batches of 32 x 5: ZeroDivisionError: ", CORRECT),
        (lambda _, x: x.missing, "cannot run on batches of 32 x 5: AttributeError: ", CORRECT),
        (lambda _, x: {}[x], "cannot run on batches of 32 x 5: KeyError: ", CORRECT),
        (lambda _1, _2: sys.exit(3), "cannot run on batches of 32 x 5: SystemExit: 3 ", CORRECT),
        (lambda linear, x: linear(x[:, 1:]), "cannot run on batches of 32 x 5: ", SHAPES),
        (lambda linear, x: linear(x) * x.max().item(), "depends on its tensors' values", "torch.where"),
        (lambda linear, x: linear(x) if x.sum() > 0 else x, "depends on its tensors' values", "torch.where"),
        (lambda linear, x: linear(x)[x[:, 0] > 0], "depends on its tensors' values", "torch.where"),
        (lambda linear, x: linear(x).detach().numpy(), "numpy() is not supported", "PyTorch's operations"),
    ],
)
def test_an_exception_of_a_network_names_it_and_its_line(forward, said, hint):
    with pytest.raises(InvalidRequest) as refusal:
        capture(forward)
    message = refusal.value.message
    assert message.startswith('architecture "theirs" ')
    assert said in message
    assert message.endswith(f" (tests/unit/capture/test_own_errors.py:{forward.__code__.co_firstlineno})")
    assert hint in refusal.value.hint


def test_the_line_is_of_the_package_that_offers_the_network_before_a_librarys(monkeypatch):
    library = {"__name__": "elsewhere.layers"}
    exec(compile("def use(x):\n    raise KeyError(7)", "/lib/elsewhere/layers.py", "exec"), library)

    def forward(_, x):
        return library["use"](x)

    def message():
        with pytest.raises(InvalidRequest) as refusal:
            capture(forward)
        return refusal.value.message

    assert message().endswith("KeyError: 7 (elsewhere/layers.py:2)")
    value = f"{__name__}:build"
    point = EntryPoint(name="theirs", value=value, group=architectures.ENTRY_POINT_GROUP)
    monkeypatch.setattr(architectures, "_offered", lambda: {"theirs": point})
    line = forward.__code__.co_firstlineno + 1
    assert message().endswith(f"KeyError: 7 (tests/unit/capture/test_own_errors.py:{line})")


def test_what_autograd_cannot_go_back_through_is_not_blamed_on_the_batch():
    with pytest.raises(InvalidRequest, match="modified by an inplace operation") as refusal:
        capture(lambda linear, x: linear(x).relu_().mul_(2))
    assert "relu instead of relu_" in refusal.value.hint
    assert "anomaly" not in refusal.value.message
    assert ".py" not in refusal.value.message


def test_a_forward_pass_that_exits_in_evaluation_is_refused_too():
    with pytest.raises(InvalidRequest, match=r'"theirs" cannot run .* SystemExit'):
        capture_forward_step(Own(lambda _1, _2: sys.exit()), (32, 5), architecture="theirs")


def test_a_defect_of_the_capture_is_not_the_networks(monkeypatch):
    def broken(args, kwargs, result):
        raise KeyError("ours")

    monkeypatch.setattr(cpu_layouts, "with_real_dtypes", broken)
    with pytest.raises(KeyError, match="ours"):
        capture(lambda linear, x: torch.relu(linear(x)))
