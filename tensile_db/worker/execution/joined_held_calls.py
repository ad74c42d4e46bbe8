"""Operators with numbers that change, of many tensors and carried out together (held_numbers.py).

Each way to carry one out has one of `_foreach_` operators, which is tried on the device before it stands in
for it.  None of these adds a product with a number in device memory: so that is spread over tensors first.

Source: ours.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from tensile_db.worker.execution.held_numbers import HeldVariant
from tensile_db.worker.execution.tried_numbers import (
    SIZES,
    drawn_tensors,
    same_bits,
    tried_numbers,
    without_zeros,
)

log = logging.getLogger(__name__)

aten = torch.ops.aten

Tensors = Sequence[torch.Tensor]
#: By argument the tensors of all calls; what is held, without dimensions; where results go, which may be the
#: first argument's; lists of memory like that.
Run = Callable[[Sequence[Tensors], torch.Tensor, Tensors, Sequence[Tensors]], None]


@dataclass(frozen=True, slots=True)
class JoinedHeldVariant:
    """A way to carry out calls of one operator together, whose number is the same and held in memory."""

    run: Run
    #: How many lists of memory it wants.
    memory_count: int


def joined_held_variant(
    function: Callable[..., Any], variant: HeldVariant, device: torch.device
) -> JoinedHeldVariant | None:
    """Return how calls that the variant stands in for are carried out together; None: they are not.

    Tried when first asked for, for which the device is waited for, and kept.
    """
    if not isinstance(function, OpOverload):
        make: Callable[[HeldVariant, torch.device], JoinedHeldVariant | None] | None
        make = getattr(function, "joined_held_variant", None)
        return None if make is None else make(variant, device)
    with _LOCK:
        key = (function, variant.name, device)
        if key not in _CHOSEN:
            _CHOSEN[key] = _chosen(function, variant, device)
        return _CHOSEN[key]


def _product(tensors: Sequence[Tensors], held: torch.Tensor, results: Tensors, _: Sequence[Tensors]) -> None:
    aten._foreach_copy_.default(results, tensors[0])
    aten._foreach_mul_.Tensor(results, held)


def _quotient(tensors: Sequence[Tensors], held: torch.Tensor, results: Tensors, _: Sequence[Tensors]) -> None:
    aten._foreach_copy_.default(results, tensors[0])
    aten._foreach_div_.Tensor(results, held)


def _joined(
    tensors: Sequence[Tensors], held: torch.Tensor, results: Tensors, memory: Sequence[Tensors]
) -> None:
    _, above, below = tensors
    quotients, factors = memory
    aten._foreach_copy_.default(quotients, above)
    aten._foreach_div_.List(quotients, below)
    aten._foreach_zero_.default(factors)
    aten._foreach_add_.Tensor(factors, held)
    aten._foreach_addcmul_.Scalar(results, quotients, factors)


def _factor_last(
    tensors: Sequence[Tensors], held: torch.Tensor, results: Tensors, memory: Sequence[Tensors]
) -> None:
    _, above, below = tensors
    (quotients,) = memory
    aten._foreach_copy_.default(quotients, above)
    aten._foreach_div_.List(quotients, below)
    aten._foreach_mul_.Tensor(quotients, held)
    aten._foreach_add_.List(results, quotients)


def _factor_first(
    tensors: Sequence[Tensors], held: torch.Tensor, results: Tensors, memory: Sequence[Tensors]
) -> None:
    _, above, below = tensors
    (products,) = memory
    aten._foreach_copy_.default(products, above)
    aten._foreach_mul_.Tensor(products, held)
    aten._foreach_div_.List(products, below)
    aten._foreach_add_.List(results, products)


def _joined_product(
    tensors: Sequence[Tensors], held: torch.Tensor, results: Tensors, memory: Sequence[Tensors]
) -> None:
    (factors,) = memory
    aten._foreach_zero_.default(factors)
    aten._foreach_add_.Tensor(factors, held)
    aten._foreach_addcmul_.Scalar(results, tensors[1], factors)


def _product_first(
    tensors: Sequence[Tensors], held: torch.Tensor, results: Tensors, memory: Sequence[Tensors]
) -> None:
    (products,) = memory
    aten._foreach_copy_.default(products, tensors[1])
    aten._foreach_mul_.Tensor(products, held)
    aten._foreach_add_.List(results, products)


def _product_in_place(
    tensors: Sequence[Tensors], held: torch.Tensor, results: Tensors, _: Sequence[Tensors]
) -> None:
    aten._foreach_mul_.Tensor(results, held)


#: By the way's name in held_numbers.py, of operators that make a new tensor.
_OF_QUOTIENTS: Mapping[str, JoinedHeldVariant] = {
    "product": JoinedHeldVariant(_product, 0),
    "product, rounded first": JoinedHeldVariant(_product, 0),
    "quotient": JoinedHeldVariant(_quotient, 0),
}
#: And of such that change their first tensor: sums of quotients, sums, products.
_OF_SUMS_OF_QUOTIENTS: Mapping[str, JoinedHeldVariant] = {
    "joined": JoinedHeldVariant(_joined, 2),
    "factor last": JoinedHeldVariant(_factor_last, 1),
    "factor first": JoinedHeldVariant(_factor_first, 1),
}
_OF_SUMS: Mapping[str, JoinedHeldVariant] = {
    "joined": JoinedHeldVariant(_joined_product, 1),
    "product first": JoinedHeldVariant(_product_first, 1),
}
_OF_PRODUCTS: Mapping[str, JoinedHeldVariant] = {"product": JoinedHeldVariant(_product_in_place, 0)}
_KNOWN: Mapping[OpOverload, Mapping[str, JoinedHeldVariant]] = {
    aten.div.Tensor: _OF_QUOTIENTS,
    aten.addcdiv_.default: _OF_SUMS_OF_QUOTIENTS,
    aten.add_.Tensor: _OF_SUMS,
    aten.mul_.Tensor: _OF_PRODUCTS,
}

#: By what the graph calls these operators, how many calls stand in for those of many tensors on GPUs, where
#: products and joined sums give the bits; of a learning rate that stays, as benchmarks' do.
JOINED_HELD_CALLS: Mapping[str, int] = {"aten.div.Tensor": 2, "aten.addcdiv_.default": 5}

_LOCK = threading.Lock()
_CHOSEN: dict[tuple[OpOverload, str, torch.device], JoinedHeldVariant | None] = {}


def _chosen(function: OpOverload, variant: HeldVariant, device: torch.device) -> JoinedHeldVariant | None:
    joined = _KNOWN.get(function, {}).get(variant.name)
    if joined is None or gives_bits(joined, variant, function, device):
        return joined
    log.warning("calls of %s are not joined on %s, where that would round otherwise", function, device)
    return None


def gives_bits(
    joined: JoinedHeldVariant,
    variant: HeldVariant,
    function: OpOverload,
    device: torch.device,
) -> bool:
    """Tell whether a way gives an operator's bits, on numbers of all magnitudes and both signs, and zeros."""
    random = np.random.default_rng(0)
    tensors = [drawn_tensors(random, SIZES, device) for _ in range(variant.tensor_count)]
    if variant.divides:
        tensors[-1] = [without_zeros(each) for each in tensors[-1]]
    held = torch.empty((), device=device)
    for number in tried_numbers(random):
        want = [
            variant.call(function, [first.clone(), *others], number)
            for first, *others in zip(*tensors, strict=True)
        ]
        got = [each.clone() for each in tensors[0]]
        held.fill_(float(variant.held(number)))
        memory = [[torch.empty_like(each) for each in got] for _ in range(joined.memory_count)]
        joined.run([got, *tensors[1:]], held, got, memory)
        if not same_bits(got, want):
            return False
    return True
