"""What is told of captured ops, by name."""

import pytest
import torch
from torch import nn

from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step
from tensile_db.worker.latencies.op_features import step_features


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, (3, 5), stride=2, padding=(1, 2), bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 10)

    def forward(self, x):
        x = torch.relu_(self.norm(self.convolution(x)))
        return self.linear(torch.cat([x, x], dim=2).mean((2, 3)))


@pytest.fixture(scope="module")
def ops():
    """The first op of each kind, its features by name."""
    step = capture_train_step(
        Net(), batch_shape=(4, 3, 16, 32), target="classes", optimizer=configure("adam")
    )
    first = {}
    for op in step_features(step):
        first.setdefault(op.kind, dict(zip(op.names, op.values, strict=True)))
    return first


def test_a_convolution_tells_sizes_stride_padding_and_groups(ops):
    told = ops["aten.convolution.default"]
    assert [told[f"size.input.{place}"] for place in range(5)] == [
        2.0,
        pytest.approx(1.585, abs=1e-3),
        4,
        5,
        0,
    ]
    assert [told[f"size.weight.{place}"] for place in range(2)] == [3.0, pytest.approx(1.585, abs=1e-3)]
    assert told["parameter.stride.0"] == told["parameter.stride.1"] == pytest.approx(1.585, abs=1e-3)
    assert (told["parameter.padding.0"], told["parameter.groups"]) == (1.0, 1.0)
    assert told["parameter.bias.given"] == 0.0
    assert 2 ** told["size.flops"] == pytest.approx(2 * 4 * 8 * 8 * 16 * 3 * 3 * 5)


def test_a_convolutions_backward_tells_which_gradients_are_wanted(ops):
    told = ops["aten.convolution_backward.default"]
    assert [told[f"parameter.output_mask.{place}"] for place in range(3)] == [0.0, 1.0, 0.0]


def test_a_concatenation_tells_how_many_there_are(ops):
    told = ops["aten.cat.default"]
    assert (told["size.tensors.count"], told["size.tensors.first.1"]) == (1.0, 3.0)


def test_a_transposed_matrix_is_told_from_a_plain_one(ops):
    told = ops["aten.addmm.default"]
    assert (told["parameter.mat1.strided"], told["parameter.mat2.strided"]) == (0.0, 1.0)


def test_an_expanded_gradient_is_told(ops):
    assert ops["aten.div.Scalar"]["parameter.self.expanded"] == 1.0


def test_another_dtype_is_another_kind(ops):
    assert "aten.add_.Tensor:int64" in ops
    assert "aten.add_.Tensor" in ops


def test_names_are_in_order_and_those_of_a_kind_are_equal():
    networks = [Net(), nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.ReLU(), nn.Linear(3, 2))]
    shapes = [(4, 3, 16, 32), (2, 12)]
    names = {}
    for network, shape in zip(networks, shapes, strict=True):
        step = capture_train_step(network, batch_shape=shape, target="classes", optimizer=configure("adam"))
        for op in step_features(step):
            assert list(op.names) == sorted(op.names)
            assert names.setdefault(op.kind, op.names) == op.names
    assert len(names) > 20


def test_the_batch_and_the_report_tell_their_bytes(ops):
    assert 2 ** ops["tensile.load_batch"]["size.moved_nbytes"] == pytest.approx(4 * 4 * 3 * 16 * 32 + 8 * 4)
    assert 2 ** ops["tensile.report"]["size.moved_nbytes"] == 4
