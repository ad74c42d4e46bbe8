"""Numbers that change from iteration to iteration, kept in device memory, so that their ops are taken down.

A kernel that is handed a number is taken down with it.  What optimizers compute with bias corrections, and
with learning rates that change, can also be computed from a number that lies in device memory, by other
operators.  Whether these give the same bits depends on how the device's kernels round: CUDA's division by a
number multiplies by its inverse, the CPU's does not; a compiler may join a product and a sum.  So each way is
tried on the device, beside the operator itself, before it stands in for it.  The numbers tried are float64's,
as the optimizers' are: CUDA's inverse is of the number before it is rounded to float32, which numbers that
float32 has do not tell.

Source: ours; pytorch aten/src/ATen/native/cuda/{BinaryDivTrueKernel.cu,DeviceAddCmulCdiv.cuh} and
native/cpu/{BinaryOpsKernel,PointwiseOpsKernel}.cpp.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload

from tensile_db.capture.step import Call, Scalar, View
from tensile_db.worker.execution.tried_numbers import drawn_tensors, same_bits, tried_numbers, without_zeros

log = logging.getLogger(__name__)

aten = torch.ops.aten

#: Elements that a way is tried on.
_TRIED_ELEMENTS = 1 << 14


#: The operator's tensors, in order; what is held, without dimensions; the result's place; memory like that,
#: which none of the tensors lies in.
Run = Callable[[Sequence[torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, slots=True)
class HeldVariant:
    """A way to carry out an operator that takes float32 tensors and one number, with that held in memory."""

    name: str
    #: What is held for a number: itself, or its inverse, rounded to float32.
    held: Callable[[float], np.float32]
    run: Run
    #: Whether it wants memory beside the result's place, of an operator that changes its first tensor.
    wants_memory: bool = False
    #: How many tensors the operator takes.
    tensor_count: int = 1
    #: What it calls its number; None: that comes behind the tensors.
    keyword: str | None = None
    #: Whether it divides by the last tensor, in which trials leave out zeros.
    divides: bool = False

    def call(
        self, function: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor], number: float
    ) -> torch.Tensor:
        """Return what the operator that this stands in for makes of the tensors and the number."""
        if self.keyword is None:
            return function(*tensors, number)
        return function(*tensors, **{self.keyword: number})


def held_variant(function: Callable[..., Any], device: torch.device) -> HeldVariant | None:
    """Return a way that gives an operator's bits on the device; None: there is none.

    Tried when first asked for, for which the device is waited for, and kept.
    """
    if not isinstance(function, OpOverload):
        make: Callable[[torch.device], HeldVariant | None] | None = getattr(function, "held_variant", None)
        return None if make is None else make(device)
    with _LOCK:
        key = (function, device)
        if key not in _CHOSEN:
            _CHOSEN[key] = _chosen(function, device)
        return _CHOSEN[key]


def is_holdable(call: Call) -> bool:
    """Tell whether a call takes float32 tensors and one number that changes, and nothing else."""
    arguments = (*call.args, *call.kwargs.values())
    tensors = [each for each in arguments if isinstance(each, View)]
    numbers = [each for each in arguments if isinstance(each, Scalar)]
    return (
        len(numbers) == 1
        and len(tensors) + 1 == len(arguments)
        and all(view.dtype == torch.float32 for view in (*tensors, *filter(None, call.outputs)))
    )


def _itself(number: float) -> np.float32:
    return np.float32(number)


def _inverse(number: float) -> np.float32:
    return np.float32(np.float64(1) / np.float64(number))


def _inverse_of_rounded(number: float) -> np.float32:
    return np.float32(1) / np.float32(number)


def _quotient(
    tensors: Sequence[torch.Tensor], held: torch.Tensor, out: torch.Tensor, _beside: torch.Tensor
) -> None:
    aten.div.out(tensors[0], held, out=out)


def _product(
    tensors: Sequence[torch.Tensor], held: torch.Tensor, out: torch.Tensor, _beside: torch.Tensor
) -> None:
    aten.mul.out(tensors[0], held, out=out)


def _joined(
    tensors: Sequence[torch.Tensor], held: torch.Tensor, out: torch.Tensor, beside: torch.Tensor
) -> None:
    own, above, below = tensors
    aten.div.out(above, below, out=beside)
    aten.addcmul.out(own, beside, held, out=out)


def _factor_last(
    tensors: Sequence[torch.Tensor], held: torch.Tensor, out: torch.Tensor, beside: torch.Tensor
) -> None:
    own, above, below = tensors
    aten.div.out(above, below, out=beside)
    aten.mul.out(beside, held, out=beside)
    aten.add.out(own, beside, out=out)


def _factor_first(
    tensors: Sequence[torch.Tensor], held: torch.Tensor, out: torch.Tensor, beside: torch.Tensor
) -> None:
    own, above, below = tensors
    aten.mul.out(above, held, out=beside)
    aten.div.out(beside, below, out=beside)
    aten.add.out(own, beside, out=out)


def _joined_product(
    tensors: Sequence[torch.Tensor], held: torch.Tensor, out: torch.Tensor, _beside: torch.Tensor
) -> None:
    own, added = tensors
    aten.addcmul.out(own, added, held, out=out)


def _product_first(
    tensors: Sequence[torch.Tensor], held: torch.Tensor, out: torch.Tensor, beside: torch.Tensor
) -> None:
    own, added = tensors
    aten.mul.out(added, held, out=beside)
    aten.add.out(own, beside, out=out)


def _sum_of_quotients(name: str, run: Run) -> HeldVariant:
    return HeldVariant(name, _itself, run, wants_memory=True, tensor_count=3, keyword="value", divides=True)


_SUMS_OF_QUOTIENTS = (
    _sum_of_quotients("joined", _joined),
    _sum_of_quotients("factor last", _factor_last),
    _sum_of_quotients("factor first", _factor_first),
)
_SUMS = (
    HeldVariant("joined", _itself, _joined_product, tensor_count=2, keyword="alpha"),
    HeldVariant("product first", _itself, _product_first, wants_memory=True, tensor_count=2, keyword="alpha"),
)
_PRODUCTS = (HeldVariant("product", _itself, _product),)
#: Of each operator, those that are faster first.
_WAYS: Mapping[OpOverload, Sequence[HeldVariant]] = {
    aten.div.Tensor: (
        HeldVariant("product", _inverse, _product),
        HeldVariant("product, rounded first", _inverse_of_rounded, _product),
        HeldVariant("quotient", _itself, _quotient),
    ),
    aten.addcdiv.default: _SUMS_OF_QUOTIENTS,
    aten.addcdiv_.default: _SUMS_OF_QUOTIENTS,
    aten.add.Tensor: _SUMS,
    aten.add_.Tensor: _SUMS,
    aten.mul.Tensor: _PRODUCTS,
    aten.mul_.Tensor: _PRODUCTS,
}

_LOCK = threading.Lock()
_CHOSEN: dict[tuple[OpOverload, torch.device], HeldVariant | None] = {}


def _chosen(function: OpOverload, device: torch.device) -> HeldVariant | None:
    for way in _WAYS.get(function, ()):
        if gives_bits(way, function, device):
            return way
    if function in _WAYS:
        log.warning("no way is known to take %s down with a number that changes on %s", function, device)
    return None


def gives_bits(way: HeldVariant, function: Callable[..., torch.Tensor], device: torch.device) -> bool:
    """Tell whether a way gives an operator's bits, on numbers of all magnitudes and both signs, and zeros."""
    random = np.random.default_rng(0)
    tensors = drawn_tensors(random, [_TRIED_ELEMENTS] * way.tensor_count, device)
    if way.divides:
        tensors[-1] = without_zeros(tensors[-1])
    held, beside = torch.empty((), device=device), torch.empty_like(tensors[0])
    for number in tried_numbers(random):
        want = way.call(function, [tensors[0].clone(), *tensors[1:]], number)
        got = tensors[0].clone()
        held.fill_(float(way.held(number)))
        way.run([got, *tensors[1:]], held, got, beside)
        if not same_bits([got], [want]):
            return False
    return True
