"""What a network keeps beside its parameters: constants are as eager's, and lost changes are refused."""

import pytest
import torch
from torch import nn

from tests.unit.capture.eager import CLASSES, assert_model_bitwise
from tests.unit.capture.refusals import refusal

FEATURES = 6


class Kept(nn.Module):
    """A linear layer behind what is done with tensors that `keep` has made."""

    def __init__(self, keep, mixed):
        super().__init__()
        self.inner = nn.Linear(FEATURES, CLASSES)
        keep(self)
        self._mixed = mixed

    def forward(self, rows):
        return self.inner(self._mixed(self, rows))


def kept(**tensors):
    """Return what keeps these as plain attributes."""
    return lambda network: [setattr(network, name, value) for name, value in tensors.items()]


def buffers(**tensors):
    """Return what keeps these as buffers, in this order."""
    return lambda network: [network.register_buffer(name, value) for name, value in tensors.items()]


def halves(network):
    network.scale, network.shift = torch.randn(2, FEATURES).unbind()


def parts(network):
    network.scale, network.shift = torch.randn(2 * FEATURES)[::2], torch.randn(9)[3:]


@pytest.mark.parametrize(
    "keep",
    [
        pytest.param(halves, id="of one storage"),
        pytest.param(parts, id="parts of larger ones"),
        pytest.param(kept(scale=torch.randn(1).expand(FEATURES), shift=torch.ones(())), id="expanded"),
        pytest.param(
            kept(scale=torch.randn(FEATURES, FEATURES).T[0], shift=torch.randn(2, FEATURES)[:, :1]),
            id="of other strides",
        ),
    ],
)
def test_constants_are_as_eagers_wherever_they_lie(keep):
    def mixed(network, rows):
        return rows * network.scale + network.shift.sum()

    assert_model_bitwise(Kept(keep, mixed), (8, FEATURES), "adam")


def delayed(network, rows):
    late = rows + network.second
    network.second = network.first
    network.first = rows.mean(0)
    return late


def swapped(network, rows):
    network.first, network.second = network.second, network.first
    return rows + network.first - 2 * network.second


def read_by_the_backward_pass(network, rows):
    state = torch.tanh(network.inner.weight[0, :1] * network.first + rows.mean(0))
    network.first = state.detach()
    return rows + state


def turned(network, rows):
    network.square = network.square.T
    return rows + network.square[0]


@pytest.mark.parametrize(
    ("mixed", "keep"),
    [
        (delayed, buffers(first=torch.zeros(FEATURES), second=torch.zeros(FEATURES))),
        (swapped, buffers(first=torch.ones(FEATURES), second=torch.full((FEATURES,), 2.0))),
        (read_by_the_backward_pass, buffers(first=torch.zeros(FEATURES))),
        (turned, buffers(square=torch.randn(FEATURES, FEATURES))),
    ],
)
def test_buffers_that_are_bound_anew_have_eagers_values(mixed, keep):
    assert_model_bitwise(Kept(keep, mixed), (8, FEATURES), "momentum")


def looked_at(network, rows):
    network.last = rows * 2
    return rows


def cached(network, rows):
    if network.mask is None:
        network.mask = torch.ones(FEATURES) / 2
    return rows * network.mask


def moved(network, rows):
    network.scale = network.scale.to(torch.float32)
    return rows * network.scale


@pytest.mark.parametrize(
    ("mixed", "keep"),
    [
        pytest.param(looked_at, kept(last=torch.zeros(1)), id="for others to look at"),
        pytest.param(cached, buffers(mask=None), id="a cache"),
        pytest.param(moved, kept(scale=torch.ones(FEATURES, dtype=torch.float64)), id="cast once"),
    ],
)
def test_what_no_later_step_would_find_otherwise_may_be_bound_anew(mixed, keep):
    assert refusal(Kept(keep, mixed)) is None


def counted(network, rows):
    network.seen.add_(1)
    return rows * network.seen


def averaged(network, rows):
    network.seen = network.seen * 0.9 + rows.mean(0)
    return rows * network.seen


def begun(network, rows):
    network.seen = rows.mean(0) if network.seen is None else network.seen * 0.9
    return rows * network.seen


def grown(network, rows):
    network.seen = torch.cat([network.seen, rows])[-7:]
    return rows + network.seen.mean(0)


def widened(network, rows):
    network.seen = network.seen.double() * 1.1
    return rows * network.seen.float()


def set_anew(network, rows):
    network.seen.set_(network.seen * 1.1)
    return rows * network.seen


def relaid(network, rows):
    network.seen.unsqueeze_(0)
    return rows * network.seen


def assigned(network, rows):
    network.inner.weight.data = network.inner.weight.data * 0.9
    return rows


def rounded(network, rows):
    made = rows * network.inner.weight[0]
    made.data = made.data.round()
    return made


def aliased(network, rows):
    made = rows * network.seen
    network.seen = network.inner.weight.detach()[0]
    return made


def rebound(network, rows):
    network.inner.weight = nn.Parameter(network.inner.weight.detach() * 0.9)
    return rows


@pytest.mark.parametrize(
    ("mixed", "keep", "told"),
    [
        (counted, kept(seen=torch.zeros(())), "changes a tensor that is neither a parameter nor a buffer"),
        (averaged, kept(seen=torch.zeros(FEATURES)), "binds seen to what it computes"),
        (begun, buffers(seen=None), "binds seen to what it computes"),
        (grown, buffers(seen=torch.zeros(1, FEATURES)), "binds seen to what it computes"),
        (widened, buffers(seen=torch.ones(FEATURES)), "binds seen to a tensor of torch.float64"),
        (set_anew, buffers(seen=torch.ones(FEATURES)), "binds seen to other memory"),
        (
            relaid,
            buffers(seen=torch.ones(FEATURES)),
            "changes a parameter or buffer by aten.unsqueeze_.default",
        ),
        (assigned, kept(), "assigns to the data of a tensor"),
        (rounded, kept(), "assigns to the data of a tensor"),
        (rebound, kept(), "binds inner.weight to another tensor"),
    ],
)
def test_what_a_captured_step_would_lose_is_refused(mixed, keep, told):
    said = refusal(Kept(keep, mixed))
    assert said is not None
    assert said.startswith(f'architecture "mine" {told}')
