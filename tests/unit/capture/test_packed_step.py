"""Captured steps with tensors packed: every value keeps its bits, also in parts."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from tensile_db.capture.memory_format import laid_out
from tensile_db.capture.packed_step import packed_step
from tensile_db.capture.precision import Precision
from tensile_db.capture.split_step import split_step
from tensile_db.graph import Axis, Code, Phase
from tensile_db.scheduler.packing.packed_graph import packable
from tests.bitwise_runs import Training, capture
from tests.small_networks import training_of
from tests.split_values import bytes_of, differing_tensors, run_all, split_of_everything

CPU = torch.device("cpu")


class Branches(nn.Module):
    """Rectifiers whose results are concatenated, as Inception's are."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 16, 1)
        self.last = nn.Conv2d(24, 8, 3)

    def forward(self, images):
        made = torch.cat([self.one(images).relu(), self.two(images).relu()], dim=1)
        return torch.nn.functional.max_pool2d(self.last(made).relu(), 3, 2).flatten(1)[:, :5]


class Dropping(nn.Module):
    """Dropout as a GPU has it, with a mask of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3 * 32 * 32, 64), nn.Linear(64, 5)

    def forward(self, images):
        kept, _ = torch.native_dropout(self.first(images.flatten(1)).relu(), 0.25, True)
        return self.last(kept)


def odd():
    """Return a network whose channels have 81 pixels, no multiple of 8."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 5))


def seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().train()


def training(network):
    own = {"branches": Branches, "dropping": Dropping}
    if network == "branches, channels last":
        return Training(
            build=lambda: laid_out(seeded(Branches), "channels_last"), shape=(8, 3, 32, 32), optimizer="sgd"
        )
    if network == "odd":
        return Training(build=lambda: seeded(odd), shape=(8, 3, 11, 11), optimizer="sgd")
    if network in own:
        build = own[network]
        return Training(build=lambda: seeded(build), shape=(8, 3, 32, 32), optimizer="sgd")
    return training_of(network, "momentum", 8)


def run_seeded(step, state, batch):
    """Run all calls; an op that takes no generator draws from PyTorch's own."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return run_all(step, state, batch)


#: Network, and the codes of what can be packed of it.
PACKED = [
    ("mlp", {Code.SIGNS: 2}),
    ("vgg with dropout", {Code.SIGNS: 7, Code.UINT16: 3}),
    ("branches", {Code.SIGNS: 3, Code.UINT16: 1}),
    ("branches, channels last", {Code.SIGNS: 3, Code.UINT16: 1}),
    ("dropping", {Code.SIGNS: 2}),
    ("odd", {Code.SIGNS: 1, Code.UINT16: 1}),
]


@pytest.mark.parametrize(("network", "want"), PACKED)
def test_every_value_of_a_packed_step_keeps_its_bits(network, want):
    asked = training(network)
    step, state = capture(asked)
    found = packable(step.graph)
    codes = [packing.code for packing in found.values()]
    assert {code: codes.count(code) for code in set(codes)} == want
    (batch,) = asked.batches()[:1]
    packed = packed_step(step, tuple(found))
    whole, coded = (run_seeded(each, state, batch) for each in (step, packed))
    # Tensors keep their ids.
    assert [tensor for tensor in whole if bytes_of(whole[tensor]) != bytes_of(coded[tensor])] == []
    going_back = [op for op in packed.graph.ops if op.phase is Phase.BACKWARD]
    assert not any(tensor in op.reads for op in going_back for tensor in found)


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FLOAT16])
def test_so_does_one_in_16_bits(precision):
    asked = replace(training("vgg with dropout"), precision=precision)
    step, state = capture(asked)
    found = packable(step.graph)
    assert any(step.graph.tensors[tensor].dtype == str(precision) for tensor in found)
    (batch,) = asked.batches()[:1]
    whole, coded = (run_all(each, state, batch) for each in (step, packed_step(step, tuple(found))))
    assert [tensor for tensor in whole if bytes_of(whole[tensor]) != bytes_of(coded[tensor])] == []


@pytest.mark.parametrize("some", [slice(0, 1), slice(1, 2), slice(0, None, 2), slice(1, None, 2)])
def test_any_of_them_can_be_packed(some):
    asked = training("vgg with dropout")
    step, state = capture(asked)
    (batch,) = asked.batches()[:1]
    packed = packed_step(step, tuple(packable(step.graph))[some])
    whole, coded = (run_all(each, state, batch) for each in (step, packed))
    assert [tensor for tensor in whole if bytes_of(whole[tensor]) != bytes_of(coded[tensor])] == []


@pytest.mark.parametrize("axis", list(Axis))
@pytest.mark.parametrize("network", ["mlp", "vgg with dropout", "branches", "branches, channels last", "odd"])
def test_a_packed_step_in_parts_keeps_all_bits_that_the_step_in_parts_does(one_thread, network, axis):
    asked = training(network)
    step, state = capture(asked)
    (batch,) = asked.batches()[:1]
    packed = packed_step(step, tuple(packable(step.graph)))
    splits = split_of_everything(packed.graph, axis, 2, keeps_bits=True)
    split = {op for each in splits for op in each.ops}
    with_codes = {op.id for op in packed.graph.ops if op.target.startswith("tensile.") and op.reads}
    if network in ("vgg with dropout", "odd"):
        assert any(packed.graph.ops[op].target == "tensile.pack_signs.default" for op in split)
        assert any(packed.graph.ops[op].target.startswith("tensile.threshold") for op in split & with_codes)
    whole, in_parts = (run_all(each, state, batch) for each in (packed, split_step(packed, splits, CPU)))
    assert differing_tensors(packed, splits, whole, in_parts) == []
