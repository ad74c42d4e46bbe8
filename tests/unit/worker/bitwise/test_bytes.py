"""Images that come as bytes and are normalised in the step: the bits of eager, which gets them normalised."""

from dataclasses import replace

import pytest
import torch

from tensile_db.capture.forward_step import capture_forward_step
from tensile_db.capture.precision import Precision
from tensile_db.capture.splitting.split_step import split_step
from tensile_db.data.features import normalised
from tensile_db.graph import Axis, Role
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import Recompute, Release
from tests.late.runs import AMPLE, open_late
from tests.late.step import late_step
from tests.steps.bitwise_runs import (
    as_planned,
    capture_once,
    differing,
    losses_of,
    recomputing,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import training_of
from tests.steps.split_values import differing_tensors, run_all, split_of_everything

pytestmark = pytest.mark.slow


def of_bytes(network="resnet", optimizer="momentum", channels=3, **changed):
    return replace(training_of(network, optimizer, 4), byte_channels=channels, **changed)


def inputs_of(step):
    return {t.name: (t.dtype, t.shape) for t in step.graph.tensors if t.role is Role.INPUT}


@pytest.mark.parametrize(
    ("network", "policy", "share", "channels"),
    [
        ("resnet", "vanilla", 1.0, 3),
        ("resnet", "tensile", 0.6, 1),
        pytest.param("resnet", "auto", 0.4, 3, marks=pytest.mark.thorough),
        pytest.param("vgg with dropout", "auto", 0.5, 1, marks=pytest.mark.thorough),
        pytest.param("vgg with dropout", "capuchin", 0.9, 3, marks=pytest.mark.thorough),
        pytest.param("vit", "auto", 0.5, 3, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("little_effort")
def test_bytes_train_to_the_bits_of_eager(one_thread, cpu_device, network, policy, share, channels):
    training = of_bytes(network, channels=channels)
    step, state = capture_once(training)
    assert inputs_of(step) == {
        "features": ("uint8", (4, channels, 32, 32)),
        "target": ("int64", (4,)),
        "normalisation": ("float32", (2, channels, 1, 1)),
    }
    plan = tight_plan(step, cpu_device, share, policy)
    got, results = train_here(
        cpu_device, as_planned(step, plan, cpu_device), state, plan.program, training.batches()
    )
    want, losses = train_eagerly(training)
    assert losses_of(results) == losses
    assert differing(got, want) == []


def test_what_is_made_of_bytes_can_be_made_again(one_thread, cpu_device):
    training = of_bytes()
    step, state = capture_once(training)
    (first,) = [op for op in step.graph.ops if op.target == "aten._to_copy.default"]
    plan = recomputing(step.graph, tight_plan(step, cpu_device, 1.0).plan, first.writes[0])
    assert plan is not None
    (again,) = [event for event in plan.events if isinstance(event, Recompute)]
    assert [step.graph.ops[op].target.split(".")[1] for op in again.ops] == ["_to_copy", "sub_", "div_"]
    # What it is made of has to stay as long.
    read = {tensor for op in again.ops for tensor in step.graph.ops[op].reads} - {again.tensor}
    events = tuple(
        replace(event, after_op=again.before_op)
        if isinstance(event, Release) and event.tensor in read
        else event
        for event in plan.events
    )
    program = lower(step.graph, replace(plan, events=events))
    got, results = train_here(cpu_device, step, state, program, training.batches())
    assert results[0].recomputed_ops == 3
    assert differing(got, train_eagerly(training)[0]) == []


def test_bytes_are_normalised_in_parts_of_any_size_with_the_bits_of_the_whole(one_thread):
    training = of_bytes(shape=(8, 3, 33, 33))
    step, state = capture_once(training)
    made = step.graph.ops[:5]
    normalising = {op.id for op in made if op.target.split(".")[1] in ("_to_copy", "sub_", "div_")}
    splits = split_of_everything(step.graph, Axis.BATCH, 3, keeps_bits=True)
    assert len(normalising) == 3
    assert normalising <= {op for split in splits for op in split.ops}
    (batch,) = training.batches()[:1]
    in_parts = split_step(step, splits, torch.device("cpu"))
    whole, parts = (run_all(each, state, batch) for each in (step, in_parts))
    assert differing_tensors(step, splits, whole, parts) == []


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FLOAT16])
def test_bytes_are_normalised_in_float32_whatever_the_precision(one_thread, cpu_device, precision):
    training = of_bytes(precision=precision)
    step, state = capture_once(training)
    plan = tight_plan(step, cpu_device, 0.8)
    got, results = train_here(cpu_device, step, state, plan.program, training.batches())
    want, losses = train_eagerly(training)
    assert losses_of(results) == losses
    assert differing(got, want) == []


@pytest.mark.parametrize("schedule", ["lazy", "copies first", "random 1"])
def test_bytes_are_brought_to_iterations_that_are_replayed(one_thread, schedule):
    training = of_bytes(iterations=5)
    runtime, device = open_late(schedule, can_record=True)
    step, state = capture_once(training)
    program = tight_plan(step, device, 0.6).program
    got, results = train_here(
        device, late_step(step, runtime), state, program, training.batches(), budget_nbytes=AMPLE
    )
    assert [result.replayed for result in results] == [False, False, True, True, True]
    assert differing(got, train_eagerly(training)[0]) == []
    device.close()


@pytest.mark.parametrize("channels", [1, 3])
def test_rows_of_bytes_go_forward_to_the_scores_of_eager(one_thread, cpu_device, channels):
    training = of_bytes(channels=channels)
    model = training.build().eval()
    step = capture_forward_step(model, training.shape, byte_channels=channels)
    _, state = capture_once(training)
    plan = tight_plan(step, cpu_device, 1.0, "auto")
    images, _, normalisation = training.batches()[0]
    kept = {name: value for name, value in state.items() if name in step.state}
    _, (result,) = train_here(cpu_device, step, kept, plan.program, [(images, normalisation)])
    with torch.no_grad():
        want = model(torch.from_numpy(normalised(images.numpy(), training.spec)))
    assert torch.equal(result.outputs["logits"], want)
