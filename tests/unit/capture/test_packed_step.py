"""Captured steps with tensors packed: every value keeps its bits, also in parts."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensile_db.capture.networks.memory_format import laid_out
from tensile_db.capture.packed_step import packed_step
from tensile_db.capture.precision import Precision
from tensile_db.capture.splitting.split_step import split_step
from tensile_db.graph import Axis, Code, Phase
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.packing.packed_graph import known_packed_graph, packable
from tensile_db.scheduler.request import JobRequest
from tests.steps.bitwise_runs import (
    Training,
    as_planned,
    capture_once,
    differing,
    losses_of,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import training_of
from tests.steps.split_values import bytes_of, differing_tensors, run_all, split_of_everything

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


class Branches(nn.Module):
    """Rectifiers whose results are concatenated, as Inception's are."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 16, 1)
        self.last = nn.Conv2d(24, 8, 3)

    def forward(self, images):
        made = torch.cat([self.one(images).relu(), self.two(images).relu()], dim=1)
        return functional.max_pool2d(self.last(made).relu(), 3, 2).flatten(1)[:, :5]


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


class Pooled(nn.Module):
    """A rectifier whose gradient is one number for all pixels; so are those of all networks that end so."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3), nn.Linear(16, 5)

    def forward(self, images):
        return self.last(self.first(images).relu().mean((2, 3)))


class Turned(nn.Module):
    """A rectifier and dropout of what lies otherwise than their gradients."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(96, 40), nn.Linear(32, 5)
        self.second = nn.Linear(40, 96)

    def forward(self, images):
        rows = images.flatten(1, 2)
        kept = functional.dropout(self.first(rows.transpose(1, 2)).transpose(1, 2), 0.2).relu()
        mixed = self.second(kept.transpose(1, 2)).transpose(1, 2)
        return self.last(functional.dropout(rows + mixed, 0.2).relu().sum(1))


class Doubled(nn.Module):
    """Dropout in float64, which is not packed."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3 * 32 * 32, 40), nn.Linear(40, 5)

    def forward(self, images):
        return self.last(functional.dropout(self.first(images.flatten(1)).double(), 0.3).float())


def seeded(build):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build().train()


def training(network):
    own = {
        "branches": Branches,
        "dropping": Dropping,
        "pooled": Pooled,
        "turned": Turned,
        "doubled": Doubled,
    }
    if network.endswith(", channels last"):
        build = own[network.removesuffix(", channels last")]
        return Training(
            build=lambda: laid_out(seeded(build), "channels_last"), shape=(8, 3, 32, 32), optimizer="sgd"
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
    ("pooled", {Code.SIGNS: 1}),
    ("pooled, channels last", {Code.SIGNS: 1}),
    ("turned", {Code.SIGNS: 3}),
    ("doubled", {}),
]


@pytest.mark.parametrize(("network", "want"), PACKED)
def test_every_value_of_a_packed_step_keeps_its_bits(network, want):
    asked = training(network)
    step, state = capture_once(asked)
    found = packable(step.graph)
    codes = [packing.code for packing in found.values()]
    assert {code: codes.count(code) for code in set(codes)} == want
    (batch,) = asked.batches()[:1]
    packed = packed_step(step, tuple(found))
    assert packed.graph.digest != step.graph.digest or not found
    whole, coded = (run_seeded(each, state, batch) for each in (step, packed))
    # Tensors keep their ids.
    assert [tensor for tensor in whole if bytes_of(whole[tensor]) != bytes_of(coded[tensor])] == []
    going_back = [op for op in packed.graph.ops if op.phase is Phase.BACKWARD]
    assert not any(tensor in op.reads for op in going_back for tensor in found)


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FLOAT16])
def test_so_does_one_in_16_bits(precision):
    asked = replace(training("vgg with dropout"), precision=precision)
    step, state = capture_once(asked)
    found = packable(step.graph)
    assert any(step.graph.tensors[tensor].dtype == str(precision) for tensor in found)
    (batch,) = asked.batches()[:1]
    whole, coded = (run_all(each, state, batch) for each in (step, packed_step(step, tuple(found))))
    assert [tensor for tensor in whole if bytes_of(whole[tensor]) != bytes_of(coded[tensor])] == []


@pytest.mark.parametrize("some", [slice(0, 1), slice(1, 2), slice(0, None, 2), slice(1, None, 2)])
def test_any_of_them_can_be_packed(some):
    asked = training("vgg with dropout")
    step, state = capture_once(asked)
    (batch,) = asked.batches()[:1]
    packed = packed_step(step, tuple(packable(step.graph))[some])
    whole, coded = (run_all(each, state, batch) for each in (step, packed))
    assert [tensor for tensor in whole if bytes_of(whole[tensor]) != bytes_of(coded[tensor])] == []


@pytest.mark.parametrize("axis", list(Axis))
@pytest.mark.parametrize(
    "network", ["mlp", "vgg with dropout", "branches", "branches, channels last", "odd", "turned"]
)
def test_a_packed_step_in_parts_keeps_all_bits_that_the_step_in_parts_does(one_thread, network, axis):
    asked = training(network)
    step, state = capture_once(asked)
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


def test_graphs_whose_codes_differ_have_other_digests():
    def build(threshold):
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.Threshold(threshold, 0.0))

    def captured(threshold):
        asked = Training(
            build=lambda: seeded(lambda: build(threshold)), shape=(8, 3, 32, 32), optimizer="sgd"
        )
        return capture_once(asked)[0].graph

    one, other = captured(0.0), captured(0.1)
    assert (len(packable(one)), len(packable(other))) == (1, 0)
    assert one.digest != other.digest


class Wide(nn.Module):
    """Of which the largest op is an early rectifier's gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 5)

    def forward(self, images):
        return self.last(functional.max_pool2d(self.first(images).relu(), 4).amax((2, 3)))


@pytest.mark.usefixtures("little_effort")
@pytest.mark.parametrize("policy", ["auto", "auto_exact", "auto_split"])
@pytest.mark.parametrize("asked", [{}, {"at_once": True}, {"splits_by_need": True}])
def test_a_job_is_packed_that_needs_more_than_it_may_have_as_it_was_captured(make_device, policy, asked):
    training = Training(build=lambda: seeded(Wide), shape=(16, 3, 64, 64), optimizer="sgd")
    step, state = capture_once(training)
    packed = known_packed_graph(step.graph, tuple(packable(step.graph))).graph
    least, most = (lower_bound_peak_nbytes(graph) for graph in (packed, step.graph))
    assert least < most
    device = make_device(1 << 30)
    latencies_ns = predict_latencies_ns(step.graph, device.spec)
    request = JobRequest(job_id=1, graph=step.graph, latencies_ns=latencies_ns, policy=policy, **asked)
    limit_nbytes = (least + most) // 2
    (plan,) = plan_jobs([request], replace(device.spec, memory_nbytes=limit_nbytes))
    assert plan.budget_nbytes <= limit_nbytes
    got, results = train_here(device, as_planned(step, plan, device), state, plan.program, training.batches())
    eager, losses = train_eagerly(training)
    assert (differing(got, eager), losses_of(results)) == ([], losses)
    (again,) = plan_jobs(
        [replace(request, former=plan.as_former)], replace(device.spec, memory_nbytes=limit_nbytes)
    )
    assert again.budget_nbytes <= limit_nbytes


class SequenceFirst(nn.Module):
    """Whose batch is not the first dimension: codes cannot be cut like their tensors."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(32, 512), nn.Linear(512, 32), nn.Linear(32, 5)

    def forward(self, images):
        tokens = images.flatten(1, 2).transpose(0, 1).contiguous()
        return self.last(self.second(functional.dropout(self.first(tokens).relu(), 0.1)).amax(0))


@pytest.mark.usefixtures("little_effort")
@pytest.mark.parametrize("policy", ["auto", "auto_split"])
def test_where_no_splits_suffice_with_codes_there_are_some_without(policy):
    training = Training(build=lambda: seeded(SequenceFirst), shape=(8, 3, 32, 32), optimizer="sgd")
    graph = capture_once(training)[0].graph
    device = replace(machine("sim:a6000"), memory_nbytes=lower_bound_peak_nbytes(graph) // 2)
    latencies_ns = predict_latencies_ns(graph, device)
    job = JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy, hurried=True)
    (plan,) = plan_jobs([job], device)
    assert (plan.plan.packed, len(plan.plan.splits)) == ((), 1)
