"""Operators with numbers that change, of many tensors together: only where these give the operator's bits."""

import logging

import pytest
import torch

from tensile_db.worker.execution import held_numbers, joined_held_calls
from tensile_db.worker.execution.held_numbers import HeldVariant, held_variant
from tensile_db.worker.execution.joined_held_calls import gives_bits, joined_held_variant

aten = torch.ops.aten

CPU = torch.device("cpu")

FUNCTIONS = tuple(joined_held_calls._KNOWN)


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_a_way_is_found_here(function):
    assert joined_held_variant(function, held_variant(function, CPU), CPU) is not None


@pytest.mark.parametrize(
    ("function", "variant"),
    [(function, way) for function in FUNCTIONS for way in held_numbers._WAYS[function]],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_each_way_rounds_together_as_it_does_alone(function, variant):
    # Also those that round as no operator here does: as GPUs' do, say.
    joined = joined_held_calls._KNOWN[function][variant.name]
    is_in_place = function is not aten.div.Tensor

    def alone(first, *others, **named):
        *tensors, number = [first, *others, *named.values()]
        held = torch.tensor(float(variant.held(number)))
        out = first if is_in_place else torch.empty_like(first)
        variant.run(tensors, held, out, torch.empty_like(first))
        return out

    known = {**joined_held_calls._KNOWN, alone: joined_held_calls._KNOWN[function]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joined_held_calls, "_KNOWN", known)
        assert gives_bits(joined, variant, alone, CPU)


def test_what_rounds_otherwise_is_found_out(monkeypatch, caplog):
    function = aten.addcdiv_.default
    found = held_variant(function, CPU)
    ways = joined_held_calls._OF_SUMS_OF_QUOTIENTS
    others = [joined for name, joined in ways.items() if name != found.name]
    assert not any(gives_bits(joined, found, function, CPU) for joined in others)
    monkeypatch.setattr(joined_held_calls, "_CHOSEN", {})
    monkeypatch.setitem(ways, found.name, others[0])
    with caplog.at_level(logging.WARNING):
        assert joined_held_variant(function, found, CPU) is None
    assert "would round otherwise" in caplog.text


def test_of_other_operators_and_ways_none_is_known():
    some = held_variant(aten.div.Tensor, CPU)
    assert joined_held_variant(aten.mul.Tensor, some, CPU) is None
    assert joined_held_variant(lambda *args: None, some, CPU) is None
    strange = HeldVariant("strange", held=some.held, run=some.run)
    assert joined_held_variant(aten.div.Tensor, strange, CPU) is None
