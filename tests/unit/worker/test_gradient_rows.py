"""Training with gradients in parts, each made when its part of the update takes it: eager PyTorch's bits."""

import pytest
import timm
import torch
from torch import nn

from tensile_db.capture import large_gradients, parts
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.order import EarlyUpdates
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.settling.assemble import assemble
from tests.bitwise_runs import Training, capture, differing, losses_of, tight_plan, train_eagerly, train_here
from tests.small_networks import with_channels_last

PART_NBYTES = 110_000


def parts_of(monkeypatch, nbytes):
    """Have what is large made in parts of at most so many bytes."""
    monkeypatch.setattr(parts, "PART_NBYTES", nbytes)
    monkeypatch.setattr(large_gradients, "LEAST_NBYTES", 2 * nbytes)


def vgg():
    return timm.models.vgg.VGG(cfg=[8, "M", 32, "M"], num_classes=5, drop_rate=0.5, mlp_ratio=1 / 64)


def products():
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(3 * 8 * 8, 320),
        nn.ReLU(),
        nn.Linear(320, 1280, bias=False),
        nn.Linear(1280, 5),
    )


def training_of(network, optimizer):
    def build():
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return nn.Sequential(network()).train()

    side = 28 if network is vgg else 8
    return Training(build=build, shape=(4, 3, side, side), optimizer=optimizer)


def trained_in(order, device, training, step, state, latencies_ns):
    program = lower(step.graph, assemble(Residency(step.graph, latencies_ns, order), "auto"))
    got, results = train_here(device, step, state, program, training.batches())
    return program.guaranteed_peak_nbytes, got, losses_of(results)


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [
        (vgg, "adam"),
        (products, "adamw"),
        (products, "sgd"),
        pytest.param(vgg, "momentum", marks=pytest.mark.slow),
        pytest.param(products, "adam", marks=pytest.mark.slow),
    ],
)
def test_each_part_is_made_and_taken_before_the_next_one(monkeypatch, make_device, network, optimizer):
    parts_of(monkeypatch, PART_NBYTES)
    training = training_of(network, optimizer)
    step, state = capture(training)
    device = make_device(1 << 30)
    latencies_ns = predict_latencies_ns(step.graph, device.spec)
    eager = tuple(range(len(step.graph.ops)))
    want = train_eagerly(training)
    peaks = []
    soon = EarlyUpdates(step.graph, latencies_ns).order()
    late = EarlyUpdates(step.graph, latencies_ns, 0).order(late=0.4)
    for order in (eager, soon, late):
        peak_nbytes, got, losses = trained_in(order, device, training, step, state, latencies_ns)
        assert (differing(got, want[0]), losses) == ([], want[1])
        peaks.append(peak_nbytes)
    assert len({eager, soon, late}) == 3
    assert peaks[1] < peaks[0]


@pytest.mark.parametrize("share", [0.7, 0.5])
def test_under_a_tight_budget_and_with_channels_last(monkeypatch, make_device, share):
    parts_of(monkeypatch, PART_NBYTES)
    training = with_channels_last(training_of(vgg, "adam"))
    step, state = capture(training)
    device = make_device(1 << 30)
    plan = tight_plan(step, device, share, policy="auto")
    got, results = train_here(device, step, state, plan.program, training.batches())
    want, losses = train_eagerly(training)
    assert (differing(got, want), losses_of(results)) == ([], losses)
    assert any(op.unread for op in step.graph.ops)
    assert all(result.swapped_in_nbytes > 0 for result in results)
