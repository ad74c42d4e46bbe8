"""Elementwise operators of many tensors, carried out as one: by PyTorch's `_foreach_` operators.

These make few kernels for many tensors where a device has such kernels, and else go through them.  Whether
they round as the operator does is tried on the device before they stand in for it, as in held_numbers.py: of
three factors, say, either two may be multiplied first.

Source: ours; pytorch aten/src/ATen/native/cuda/Foreach*.cu.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from tensile_db.capture.step import Call, View
from tensile_db.worker.execution.tried_numbers import SIZES, drawn_tensors, same_bits, tried_numbers

log = logging.getLogger(__name__)

aten = torch.ops.aten

#: By argument the tensors of all calls; the numbers, which all calls share; where results go.
Run = Callable[[Sequence[Sequence[torch.Tensor]], Sequence[float], Sequence[torch.Tensor]], None]


@dataclass(frozen=True, slots=True)
class CallForm:
    """What the arguments of calls have in common: tensors come first, then numbers."""

    tensor_count: int
    number_count: int
    #: Of the last numbers, which are given by name.
    names: tuple[str, ...]

    def given(self, numbers: Sequence[float]) -> tuple[Sequence[float], dict[str, float]]:
        """Return the numbers that are given by place, and those that are given by name."""
        by_place = self.number_count - len(self.names)
        return numbers[:by_place], dict(zip(self.names, numbers[by_place:], strict=True))


@dataclass(frozen=True, slots=True)
class JoinedVariant:
    """A way to carry out calls of one form and one operator at once."""

    function: OpOverload
    form: CallForm
    run: Run


@dataclass(frozen=True, slots=True)
class JoinableCall:
    """A call that can be carried out with others."""

    variant: JoinedVariant
    tensors: tuple[View, ...]
    numbers: tuple[float, ...]
    #: Where the result goes: a new tensor, or the first one.
    result: View

    @property
    def kind(self) -> tuple[OpOverload, CallForm, tuple[float, ...]]:
        """What those that go together share."""
        return self.variant.function, self.variant.form, self.numbers


def joinable(call: Call, device: torch.device) -> JoinableCall | None:
    """Return a call of float32 tensors of one shape as it can be joined with others; None: it cannot.

    Tried when first asked for, for which the device is waited for, and kept.
    """
    tensors = tuple(each for each in call.args if isinstance(each, View))
    numbers = (*call.args[len(tensors) :], *call.kwargs.values())
    if not tensors or call.function is None or not all(type(each) in (int, float) for each in numbers):
        return None
    result = (call.outputs[0] if call.outputs else None) or tensors[0]
    if any(view.dtype != torch.float32 or view.size != result.size for view in (*tensors, result)):
        return None
    form = CallForm(len(tensors), len(numbers), tuple(call.kwargs))
    variant = joined_variant(call.function, form, device)
    return None if variant is None else JoinableCall(variant, tensors, numbers, result)


def joined_variant(
    function: Callable[..., Any], form: CallForm, device: torch.device
) -> JoinedVariant | None:
    """Return a way that gives an operator's bits on the device; None: there is none."""
    if not isinstance(function, OpOverload):
        make: Callable[[CallForm, torch.device], JoinedVariant | None] | None
        make = getattr(function, "joined_variant", None)
        return None if make is None else make(form, device)
    with _LOCK:
        key = (function, form, device)
        if key not in _CHOSEN:
            _CHOSEN[key] = _chosen(*key)
        return _CHOSEN[key]


#: Of operators that change their first tensor, and of such that make another one; by how many they take.
_CHANGES: Mapping[tuple[OpOverload, int], OpOverload] = {
    (aten.mul_.Tensor, 1): aten._foreach_mul_.Scalar,
    (aten.add_.Tensor, 1): aten._foreach_add_.Scalar,
    (aten.add_.Tensor, 2): aten._foreach_add_.List,
    (aten.lerp_.Scalar, 2): aten._foreach_lerp_.Scalar,
    (aten.addcmul_.default, 3): aten._foreach_addcmul_.Scalar,
}
_MAKES: Mapping[tuple[OpOverload, int], OpOverload] = {
    (aten.mul.Tensor, 1): aten._foreach_mul_.Scalar,
    (aten.add.Tensor, 2): aten._foreach_add_.List,
    (aten.lerp.Scalar, 2): aten._foreach_lerp_.Scalar,
    (aten.sqrt.default, 1): aten._foreach_sqrt_.default,
}
#: By what the graph calls these operators, how many calls stand in for those of many tensors.
JOINED_CALLS: Mapping[str, int] = {
    **{str(function): 1 for function, _ in _CHANGES},
    **{str(function): 2 for function, _ in _MAKES},
}

_LOCK = threading.Lock()
_CHOSEN: dict[tuple[OpOverload, CallForm, torch.device], JoinedVariant | None] = {}


def _chosen(function: OpOverload, form: CallForm, device: torch.device) -> JoinedVariant | None:
    key = function, form.tensor_count
    of_all = _CHANGES.get(key) or _MAKES.get(key)
    if of_all is None:
        return None
    variant = JoinedVariant(function, form, _run(of_all, form, copies=key in _MAKES))
    if gives_bits(variant, device):
        return variant
    log.warning("calls of %s are not joined on %s, where that would round otherwise", function, device)
    return None


def _run(of_all: OpOverload, form: CallForm, *, copies: bool) -> Run:
    def run(
        tensors: Sequence[Sequence[torch.Tensor]], numbers: Sequence[float], results: Sequence[torch.Tensor]
    ) -> None:
        first, *others = tensors
        if copies:
            aten._foreach_copy_.default(results, first)
        by_place, named = form.given(numbers)
        of_all(results, *others, *by_place, **named)

    return run


def gives_bits(variant: JoinedVariant, device: torch.device) -> bool:
    """Tell whether a way gives an operator's bits, on numbers of all magnitudes and both signs, and zeros."""
    random = np.random.default_rng(0)
    form = variant.form
    tensors = [drawn_tensors(random, SIZES, device) for _ in range(form.tensor_count)]
    for number in [*tried_numbers(random), 0.0]:
        numbers = [number] * form.number_count
        by_place, named = form.given(numbers)
        want = [
            variant.function(each[0].clone(), *each[1:], *by_place, **named)
            for each in zip(*tensors, strict=True)
        ]
        # Where they change the first tensor it is the result.
        got = [each.clone() for each in tensors[0]]
        variant.run([got, *tensors[1:]], numbers, got)
        if not same_bits(got, want):
            return False
    return True
