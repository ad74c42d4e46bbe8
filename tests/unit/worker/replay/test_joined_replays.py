"""Recordings that hand updates of small tensors over as one: eager's bits, and fewer kernels."""

import dataclasses

import pytest
import torch

from tensile_db.capture.precision import Precision
from tensile_db.scheduler.sharing import gathered_updates
from tensile_db.worker.execution import joined_calls
from tests.examples import by_turns
from tests.late.runs import AMPLE, Told, open_late
from tests.late.runtime import SCHEDULES
from tests.late.step import late_step
from tests.late.tape import LatePassage
from tests.steps.bitwise_runs import (
    as_planned,
    capture_once,
    differing,
    losses_of,
    tight_plan,
    train_eagerly,
    train_here,
)
from tests.steps.small_networks import training_of, with_schedule

pytestmark = pytest.mark.slow

aten = torch.ops.aten


def trained(step, state, training, schedule="lazy", *, replay=True, share=1.0):
    """Train on a device that replays; return the bits, the losses and what was said of replay."""
    runtime, device = open_late(schedule, can_record=True)
    told = Told()
    plan = tight_plan(step, device, share, "auto")
    got, results = train_here(
        device,
        late_step(as_planned(step, plan, device), runtime),
        state,
        plan.program,
        training.batches(),
        budget_nbytes=AMPLE,
        replay=replay,
        tell=told,
    )
    assert (device.memory.used_nbytes, runtime.open_tapes) == (0, [])
    device.close()
    assert results[-1].replayed == replay
    return got, losses_of(results), dict(told.said)


def updates_of(step):
    """Return how many ops the optimizer has."""
    return sum(op.phase == "optimizer" and bool(op.writes) for op in step.graph.ops)


@pytest.mark.parametrize(
    ("network", "optimizer", "share", "schedule"),
    by_turns(
        [
            ("mlp", "sgd", 1.0),
            ("resnet", "momentum", 0.6),
            ("vgg with dropout", "adam", 0.6),
            ("vit", "adamw", 0.6),
            ("transformer", "adamw", 0.95),
        ],
        SCHEDULES,
    ),
)
def test_updates_are_joined_and_bits_are_eagers(one_thread, network, optimizer, share, schedule):
    training = dataclasses.replace(training_of(network, optimizer, 4), iterations=6)
    step, state = capture_once(training)
    got, losses, said = trained(step, state, training, schedule, share=share)
    want, wanted_losses = train_eagerly(training)
    assert differing(got, want) == []
    assert losses == wanted_losses
    # All but those of large tensors, and of what is moved.
    assert 0.75 * updates_of(step) <= said["replayed"]["joined"] <= updates_of(step)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_updates_whose_learning_rate_changes_are_joined(one_thread, optimizer):
    training = with_schedule(training_of("mlp", optimizer, 4))
    step, state = capture_once(training)
    got, losses, said = trained(step, state, training)
    want, wanted_losses = train_eagerly(training)
    assert (differing(got, want), losses) == ([], wanted_losses)
    assert 0.75 * updates_of(step) <= said["replayed"]["joined"] <= updates_of(step)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_updates_in_float16_are_joined_but_for_what_keeps_them_where_all_is_finite(one_thread, optimizer):
    training = training_of("mlp", optimizer, 4)
    training = dataclasses.replace(training, iterations=6, precision=Precision.FLOAT16)
    step, state = capture_once(training)
    got, losses, said = trained(step, state, training)
    want, wanted_losses = train_eagerly(training)
    assert differing(got, want) == []
    assert losses == wanted_losses
    assert said["replayed"]["joined"] > 0.4 * updates_of(step)


def test_what_is_joined_is_one_kernel(one_thread, monkeypatch):
    passages = []
    make = LatePassage.__init__
    monkeypatch.setattr(
        LatePassage,
        "__init__",
        lambda self, *args, **kwargs: (passages.append(self), make(self, *args, **kwargs))[1],
    )
    training = dataclasses.replace(training_of("resnet", "momentum", 4), iterations=4)
    step, state = capture_once(training)
    kernels = {}
    for together_nbytes in (gathered_updates.TOGETHER_NBYTES, 0):
        monkeypatch.setattr(gathered_updates, "TOGETHER_NBYTES", together_nbytes)
        got, _, said = trained(step, state, training)
        kernels[said["replayed"]["joined"]] = sum(len(passage.entries) for passage in passages)
        passages.clear()
        assert differing(got, train_eagerly(training)[0]) == []
    (joined,) = set(kernels) - {0}
    saved = kernels[0] - kernels[joined]
    # Of each operator of a step one is left, by each page of gradients.
    assert joined - 30 < saved < joined


def test_updates_with_numbers_of_their_own_are_not_joined(one_thread):
    training = dataclasses.replace(training_of("mlp", "momentum", 4), iterations=5)
    step, state = capture_once(training)
    changed = [
        place
        for place, call in enumerate(step.calls)
        if call.function is aten.add_.Tensor and call.kwargs.get("alpha") == -0.01
    ][:2]
    calls = [
        dataclasses.replace(call, kwargs={"alpha": -0.01 * (2 + place)}) if place in changed else call
        for place, call in enumerate(step.calls)
    ]
    own = dataclasses.replace(step, calls=tuple(calls))
    got, losses, said = trained(own, state, training)
    want, wanted_losses, _ = trained(own, state, training, replay=False)
    assert differing(got, want) == []
    assert losses == wanted_losses
    assert said["replayed"]["joined"] == updates_of(step) - 2
    assert differing(got, trained(step, state, training)[0]) != []


def test_where_kernels_of_many_tensors_round_otherwise_nothing_is_joined(one_thread, monkeypatch):
    monkeypatch.setattr(joined_calls, "_CHOSEN", {})
    monkeypatch.setattr(joined_calls, "gives_bits", lambda *_: False)
    training = dataclasses.replace(training_of("mlp", "momentum", 4), iterations=5)
    step, state = capture_once(training)
    got, losses, said = trained(step, state, training)
    want, wanted_losses = train_eagerly(training)
    assert differing(got, want) == []
    assert losses == wanted_losses
    assert said["replayed"]["joined"] == 0
