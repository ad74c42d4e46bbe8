"""Training with gradients in parts, each made when its part of the update takes it: eager PyTorch's bits."""

import pytest

from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.choosing.order import EarlyUpdates
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.settling.assemble import assemble
from tests.examples import one_in
from tests.steps.bitwise_runs import (
    as_planned,
    capture_once,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.row_networks import OwnWeight, have_parts_of, products, row_training, vgg
from tests.steps.small_networks import with_channels_last

pytestmark = pytest.mark.usefixtures("little_effort")


def trained_in(order, device, training, step, state, latencies_ns):
    program = lower(step.graph, assemble(Residency(step.graph, latencies_ns, order), "auto"))
    got, results = train_here(device, step, state, program, training.batches())
    return program.guaranteed_peak_nbytes, got, losses_of(results)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "optimizer"),
    [
        (vgg, "adam"),
        (products, "adamw"),
        (products, "sgd"),
        pytest.param(vgg, "momentum", marks=pytest.mark.thorough),
        pytest.param(products, "adam", marks=pytest.mark.thorough),
    ],
)
def test_each_part_is_made_and_taken_before_the_next_one(monkeypatch, make_device, network, optimizer):
    have_parts_of(monkeypatch)
    training = row_training(network, optimizer)
    step, state = capture_once(training)
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


def test_a_weight_that_is_also_read_for_its_value_is_updated_behind_that(monkeypatch, make_device):
    have_parts_of(monkeypatch)
    training = row_training(OwnWeight, "momentum")
    step, state = capture_once(training)
    device = make_device(1 << 30)
    latencies_ns = predict_latencies_ns(step.graph, device.spec)
    late = EarlyUpdates(step.graph, latencies_ns, 0).order(late=0.4)
    _, got, losses = trained_in(late, device, training, step, state, latencies_ns)
    want = train_eagerly(training)
    assert (differing(got, want[0]), losses) == ([], want[1])


@pytest.mark.slow
@pytest.mark.parametrize("share", one_in(2, [0.5, 0.7]))
def test_under_a_tight_budget_and_with_channels_last(monkeypatch, make_device, share):
    have_parts_of(monkeypatch)
    training = with_channels_last(row_training(vgg, "adam"))
    step, state = capture_once(training)
    device = make_device(1 << 30)
    plan = tight_plan(step, device, share, policy="auto")
    got, results = train_here(device, as_planned(step, plan, device), state, plan.program, training.batches())
    want, losses = train_eagerly(training)
    assert (differing(got, want), losses_of(results)) == ([], losses)
    assert any(op.unread for op in step.graph.ops)
    assert all(result.swapped_in_nbytes > 0 for result in results)
