"""Numbers that change, in device memory: iterations of optimizers in one piece, with eager's bits."""

import dataclasses

import numpy as np
import pytest
import torch

from tensile_db.worker.execution import held_numbers
from tensile_db.worker.execution.held_numbers import gives_bits, held_variant, is_holdable
from tensile_db.worker.execution.held_ops import HeldOps
from tests.late.runs import AMPLE, Told, open_late
from tests.late.runtime import SCHEDULES
from tests.late.step import late_step
from tests.steps.bitwise_runs import capture_once, differing, losses_of, tight_plan, train_eagerly, train_here
from tests.steps.small_networks import training_of, with_schedule

aten = torch.ops.aten

CPU = torch.device("cpu")


@pytest.mark.parametrize("function", held_numbers._WAYS, ids=str)
def test_a_way_is_found_here(function):
    assert held_variant(function, CPU) is not None


@pytest.mark.parametrize(
    "function", [each for each, ways in held_numbers._WAYS.items() if len(ways) > 1], ids=str
)
def test_another_way_gives_other_bits(function):
    # Or the trial could not tell one from the other.
    assert not all(gives_bits(way, function, CPU) for way in held_numbers._WAYS[function])


def test_a_product_that_is_rounded_otherwise_is_found_out():
    (way,) = held_numbers._WAYS[aten.mul_.Tensor]
    assert not gives_bits(way, lambda x, number: x.double().mul(number).float(), CPU)


@pytest.mark.parametrize(
    ("inverse", "name"),
    [
        (lambda number: np.float32(1 / number), "product"),
        (lambda number: np.float32(1) / np.float32(number), "product, rounded first"),
    ],
    ids=["cuda's", "of the rounded number"],
)
def test_divisions_by_inverses_are_told_apart_by_when_they_round(inverse, name):
    def divided(x, number):
        return x * torch.tensor(inverse(number))

    ways = held_numbers._WAYS[aten.div.Tensor]
    assert [way.name for way in ways if gives_bits(way, divided, CPU)] == [name]


def test_of_an_operator_that_nobody_knows_a_way_for_there_is_none():
    assert held_variant(aten.lerp_.Scalar, CPU) is None
    assert held_variant(lambda *args: None, CPU) is None


def test_numbers_for_other_dtypes_and_ops_with_two_numbers_are_not_held():
    step, _ = capture_once(training_of("mlp", "adam", 4))
    call = next(each for each in step.calls if each.function is aten.addcdiv_.default)
    assert is_holdable(call)
    half = [dataclasses.replace(view, dtype=torch.float16) for view in call.args]
    assert not is_holdable(dataclasses.replace(call, args=tuple(half)))
    assert not is_holdable(dataclasses.replace(call, args=(*call.args, call.kwargs["value"])))
    assert not is_holdable(dataclasses.replace(call, kwargs={"value": 0.5}))


def replayed(training, schedule="lazy", budget_nbytes=AMPLE, share=0.6):
    """Train on a device that replays; return state, losses and what was said of it."""
    runtime, device = open_late(schedule, can_record=True)
    step, state = capture_once(training)
    told = Told()
    got, results = train_here(
        device,
        late_step(step, runtime),
        state,
        tight_plan(step, device, share).program,
        training.batches(),
        budget_nbytes=budget_nbytes,
        tell=told,
    )
    assert (device.memory.used_nbytes, runtime.open_tapes) == (0, [])
    device.close()
    return got, losses_of(results), told.said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "optimizer", "schedule"),
    [
        *(("mlp", "adamw", schedule) for schedule in SCHEDULES),
        pytest.param("resnet", "adam", "random 1", marks=pytest.mark.thorough),
    ],
)
def test_an_iteration_of_adam_is_one_passage_with_eagers_bits(one_thread, network, optimizer, schedule):
    training = dataclasses.replace(training_of(network, optimizer, 4), iterations=6)
    got, losses, said = replayed(training, schedule)
    want, expected = train_eagerly(training)
    assert differing(got, want) == []
    assert losses == expected
    assert [(what, detail["passages"]) for what, detail in said] == [("replayed", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_an_iteration_that_clips_gradients_is_one_passage_too(one_thread, optimizer):
    training = dataclasses.replace(training_of("mlp", optimizer, 4), iterations=6, max_gradient_norm=0.5)
    got, losses, said = replayed(training, share=1.0)
    want, expected = train_eagerly(training)
    assert (differing(got, want), losses) == ([], expected)
    assert [(what, detail["passages"]) for what, detail in said] == [("replayed", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_an_iteration_whose_learning_rate_changes_is_one_passage_too(one_thread, optimizer):
    training = with_schedule(training_of("mlp", optimizer, 4))
    got, losses, said = replayed(training, share=1.0)
    want, expected = train_eagerly(training)
    assert (differing(got, want), losses) == ([], expected)
    assert [(what, detail["passages"]) for what, detail in said] == [("replayed", 1)]


def test_where_no_way_gives_the_bits_such_ops_are_run_one_by_one(one_thread, monkeypatch):
    monkeypatch.setattr(held_numbers, "_CHOSEN", dict.fromkeys((each, CPU) for each in held_numbers._WAYS))
    training = dataclasses.replace(training_of("mlp", "adam", 4), iterations=5)
    got, _, said = replayed(training)
    assert differing(got, train_eagerly(training)[0]) == []
    ((what, detail),) = said
    assert what == "replayed"
    assert detail["passages"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
def test_a_device_that_fails_while_ways_are_tried_goes_on_op_by_op(one_thread, monkeypatch, error):
    def fails(way, function, device):
        raise error("no memory is left")

    monkeypatch.setattr(held_numbers, "_CHOSEN", {})
    monkeypatch.setattr(held_numbers, "gives_bits", fails)
    training = dataclasses.replace(training_of("mlp", "adam", 4), iterations=5)
    got, _, said = replayed(training)
    assert differing(got, train_eagerly(training)[0]) == []
    ((what, detail),) = said
    assert what == "not_replayed"
    assert "no memory is left" in detail["reason"]


def test_numbers_that_are_not_brought_are_found_out(one_thread, monkeypatch):
    training = dataclasses.replace(training_of("mlp", "adam", 4), iterations=5)
    load = HeldOps.load
    loads = []

    def once(self, scalars, device):
        loads.append(scalars)
        if len(loads) == 1:
            load(self, scalars, device)

    monkeypatch.setattr(HeldOps, "load", once)
    got, _, _ = replayed(training)
    assert len(loads) == 3
    assert differing(got, train_eagerly(training)[0])
