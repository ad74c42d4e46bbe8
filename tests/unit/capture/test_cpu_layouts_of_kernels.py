"""Fake results of kernels that are no TensorIterator's have their layouts and storages, whatever comes in."""

from itertools import product

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tensile_db.capture.fakes.cpu_layouts import CpuFakeMode

aten = torch.ops.aten

SHAPE = (6, 8, 8, 12)

#: How the two tensors of a call lie in memory.
LAYOUTS = {
    "contiguous": lambda made: made,
    "channels last": lambda made: made.contiguous(memory_format=torch.channels_last),
    "transposed": lambda made: made.mT.contiguous().mT,
    "with gaps": lambda made: torch.cat([made, made], 3)[..., ::2],
    "batch last": lambda made: made.permute(1, 2, 3, 0).contiguous().permute(3, 0, 1, 2),
}

NONE, MEAN = 0, 1

CALLS = {
    "log_sigmoid": lambda one, _: aten.log_sigmoid_forward(one),
    "log_sigmoid_backward": lambda one, other: aten.log_sigmoid_backward(other, one, one.contiguous()),
    "rrelu": lambda one, other: aten.rrelu_with_noise(one, other.contiguous(), 0.1, 0.3, True),
    "rrelu of evaluation": lambda one, other: aten.rrelu_with_noise(one, other.contiguous(), 0.1, 0.3, False),
    "rrelu_backward": lambda one, other: aten.rrelu_with_noise_backward(
        other, one, other.contiguous(), 0.1, 0.3, True, False
    ),
    "rrelu_backward of evaluation": lambda one, other: aten.rrelu_with_noise_backward(
        other, one, other.contiguous(), 0.1, 0.3, False, False
    ),
    "roll": lambda one, _: aten.roll(one, [1], [2]),
    "roll of two": lambda one, _: aten.roll(one, [1, 1], [2, 1]),
    "roll of all": lambda one, _: aten.roll(one, [3]),
    "channel_shuffle": lambda one, _: aten.channel_shuffle(one, 2),
    "elu_backward": lambda one, other: aten.elu_backward(other, 1.67, 1.05, 1.0, False, one),
    "hardsigmoid_backward": lambda one, other: aten.hardsigmoid_backward(other, one),
    "softplus_backward": lambda one, other: aten.softplus_backward(other, one, 1.0, 20.0),
    "glu_backward": lambda one, other: aten.glu_backward(other[:, :4], one, 1),
    "huber_loss": lambda one, other: aten.huber_loss(one, other, NONE),
    "huber_loss as a mean": lambda one, other: aten.huber_loss(one, other, MEAN),
    "huber_loss_backward": lambda one, other: aten.huber_loss_backward(other, one, one, NONE, 1.0),
    "smooth_l1_loss": lambda one, other: aten.smooth_l1_loss(one, other, NONE),
    "smooth_l1_loss as a mean": lambda one, other: aten.smooth_l1_loss(one, other, MEAN),
    "smooth_l1_loss_backward": lambda one, other: aten.smooth_l1_loss_backward(other, one, one, NONE, 1.0),
    "mse_loss": lambda one, other: aten.mse_loss(one, other, NONE),
    "mse_loss_backward": lambda one, other: aten.mse_loss_backward(other, one, one, NONE),
    "binary_cross_entropy": lambda one, other: aten.binary_cross_entropy(one, other, None, NONE),
    "binary_cross_entropy as a mean": lambda one, other: aten.binary_cross_entropy(one, other),
    "binary_cross_entropy_backward": lambda one, other: aten.binary_cross_entropy_backward(
        other, one, one, None, NONE
    ),
    "reflection_pad2d_backward": lambda one, other: aten.reflection_pad2d_backward(
        other, one[:, :, :-2, :-2], [1, 1, 1, 1]
    ),
    "replication_pad2d_backward": lambda one, other: aten.replication_pad2d_backward(
        other, one[:, :, :-2, :-2], [1, 1, 1, 1]
    ),
}


def layouts_of(call, make):
    """Return the strides and the storages' sizes of what a call makes of each two layouts."""
    found = {}
    for (one, of_one), (other, of_other) in product(LAYOUTS.items(), repeat=2):
        results = tree_leaves(call(of_one(make()), of_other(make())))
        found[one, other] = [(made.stride(), made.untyped_storage().nbytes()) for made in results]
    return found


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_kernels_results_lie_as_eagers_do(call):
    eager = layouts_of(call, lambda: torch.rand(SHAPE))
    with CpuFakeMode(allow_non_fake_inputs=True):
        fake = layouts_of(call, lambda: torch.empty(SHAPE))
    assert fake == eager
