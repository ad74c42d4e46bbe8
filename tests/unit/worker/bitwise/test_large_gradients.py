"""Gradients of large weights, each made by an op of its own, later than eager does: the bits stay eager's."""

import pytest

from tensile_db.capture import large_gradients
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.order import EarlyUpdates
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.settling.assemble import assemble
from tests.steps.bitwise_runs import capture, differing, losses_of, train_eagerly, train_here
from tests.steps.small_networks import training_of

#: Left out of `make check`.
pytestmark = pytest.mark.slow


def backward_ops(graph):
    return [op for op in graph.ops if op.target == "aten.convolution_backward.default"]


@pytest.mark.parametrize("network", ["vgg with dropout", "resnet"])
def test_each_gradient_by_itself_has_eagers_bits(monkeypatch, make_device, network):
    training = training_of(network, "adam", 4)
    together = backward_ops(capture(training)[0].graph)
    monkeypatch.setattr(large_gradients, "LEAST_NBYTES", 0)
    step, state = capture(training)
    apart = backward_ops(step.graph)
    # The first convolution has no gradient of its input to make.
    assert len(apart) == 2 * len(together) - 1
    assert sum(op.flops for op in apart) == sum(op.flops for op in together)
    device = make_device(1 << 32)
    got, results = train_here(
        device, step, state, lower(step.graph, vanilla.plan_one(step.graph)), training.batches()
    )
    eager, losses = train_eagerly(training)
    assert differing(got, eager) == []
    assert losses_of(results) == losses


def test_made_late_they_have_eagers_bits(monkeypatch, make_device):
    monkeypatch.setattr(large_gradients, "LEAST_NBYTES", 0)
    training = training_of("vgg with dropout", "adam", 4)
    step, state = capture(training)
    device = make_device(1 << 32)
    latencies_ns = predict_latencies_ns(step.graph, device.spec)
    late = EarlyUpdates(step.graph, latencies_ns, 0).order(late=0.5)
    weights = [op.id for op in backward_ops(step.graph) if len(op.writes) == 2]
    soon = EarlyUpdates(step.graph, latencies_ns).order()
    assert any(late.index(op) > soon.index(op) for op in weights)
    program = lower(step.graph, assemble(Residency(step.graph, latencies_ns, late), "auto"))
    got, _ = train_here(device, step, state, program, training.batches())
    assert differing(got, train_eagerly(training)[0]) == []
