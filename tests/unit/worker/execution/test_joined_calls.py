"""Operators of many tensors at once: only where these give the operator's bits."""

import dataclasses
import logging

import pytest
import torch

from tensile_db.capture.step import Scalar
from tensile_db.worker.execution import joined_calls
from tensile_db.worker.execution.joined_calls import CallForm, gives_bits, joinable, joined_variant
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

aten = torch.ops.aten

CPU = torch.device("cpu")

#: Each operator as optimizers call it.
FORMS = [
    (aten.mul_.Tensor, CallForm(1, 1, ())),
    (aten.add_.Tensor, CallForm(1, 1, ())),
    (aten.add_.Tensor, CallForm(2, 0, ())),
    (aten.add_.Tensor, CallForm(2, 1, ("alpha",))),
    (aten.lerp_.Scalar, CallForm(2, 1, ())),
    (aten.addcmul_.default, CallForm(3, 1, ("value",))),
    (aten.add.Tensor, CallForm(2, 1, ("alpha",))),
    (aten.mul.Tensor, CallForm(1, 1, ())),
    (aten.lerp.Scalar, CallForm(2, 1, ())),
    (aten.sqrt.default, CallForm(1, 0, ())),
]


def call_of(function, optimizer="adamw"):
    """Return an optimizer's first call of an operator."""
    step, _ = capture_once(training_of("mlp", optimizer, 4))
    return next(call for call in reversed(step.calls) if call.function is function)


@pytest.mark.parametrize(("function", "form"), FORMS, ids=str)
def test_a_way_is_found_here(function, form):
    assert joined_variant(function, form, CPU) is not None


def test_all_ways_are_tried_here():
    tried = {(function, form.tensor_count) for function, form in FORMS}
    assert tried == {*joined_calls._CHANGES, *joined_calls._MAKES}


def added(tensors, numbers, _):
    for first, *others in zip(*tensors, strict=True):
        first.add_(others[0] * numbers[0])


def multiplied(tensors, numbers, _):
    for first, one, other in zip(*tensors, strict=True):
        first.add_(one * (other * numbers[0]))


@pytest.mark.parametrize(
    ("function", "form", "run"),
    [
        # Where a product is rounded before it is added, and where another product comes first.
        (aten.add_.Tensor, CallForm(2, 1, ("alpha",)), added),
        (aten.addcmul_.default, CallForm(3, 1, ("value",)), multiplied),
    ],
    ids=["sum", "product"],
)
def test_what_rounds_otherwise_is_found_out(monkeypatch, caplog, function, form, run):
    variant = joined_variant(function, form, CPU)
    assert variant is not None
    assert gives_bits(variant, CPU)
    assert not gives_bits(dataclasses.replace(variant, run=run), CPU)
    monkeypatch.setattr(joined_calls, "_CHOSEN", {})
    monkeypatch.setattr(joined_calls, "_run", lambda *_, **__: run)
    with caplog.at_level(logging.WARNING):
        assert joined_variant(function, form, CPU) is None
    assert "would round otherwise" in caplog.text


def test_nobody_knows_how_to_join_other_operators():
    assert joined_variant(aten.mm.default, CallForm(2, 0, ()), CPU) is None
    assert joined_variant(lambda *args: None, CallForm(1, 0, ()), CPU) is None
    assert joined_variant(aten.mul_.Tensor, CallForm(2, 0, ()), CPU) is None


def test_calls_of_an_optimizer_are_joinable_with_those_that_share_their_numbers():
    found = joinable(call_of(aten.addcmul_.default), CPU)
    assert found is not None
    assert found.numbers == (pytest.approx(0.001),)
    assert found.result is found.tensors[0]
    call = call_of(aten.addcmul_.default)
    other = joinable(dataclasses.replace(call, kwargs={"value": 0.5}), CPU)
    assert other is not None
    assert other.kind != found.kind
    assert joinable(call, CPU).kind == found.kind


def test_what_makes_a_new_tensor_is_joinable_too():
    call = call_of(aten.sqrt.default)
    found = joinable(call, CPU)
    assert found is not None
    assert found.result is call.outputs[0]


@pytest.mark.parametrize("differs", ["number", "dtype", "size", "order", "text", "truth"])
def test_other_calls_are_not(differs):
    call = call_of(aten.add_.Tensor, "momentum")
    assert joinable(call, CPU) is not None
    first, second = call.args
    match differs:
        case "number":
            call = dataclasses.replace(call, kwargs={"alpha": Scalar(name="rate")})
        case "dtype":
            call = dataclasses.replace(call, args=(first, dataclasses.replace(second, dtype=torch.float16)))
        case "size":
            call = dataclasses.replace(call, args=(first, dataclasses.replace(second, size=(1,))))
        case "order":
            call = dataclasses.replace(call, args=(0.5, first))
        case "text":
            call = dataclasses.replace(call, kwargs={"rounding_mode": "trunc"})
        case "truth":
            call = dataclasses.replace(call, kwargs={"alpha": True})
    assert joinable(call, CPU) is None
