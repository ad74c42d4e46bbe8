"""Numbers that change from iteration to iteration, kept in device memory, so that their ops are taken down.

A kernel that is handed a number is taken down with it.  What Adam computes with its bias corrections can also
be computed from a number that lies in device memory, by other operators.  Whether these give the same bits
depends on how the device's kernels round: CUDA's division by a number multiplies by its inverse, the CPU's
does not; a compiler may join a product and a sum.  So each way is tried on the device, beside the operator
itself, before it stands in for it.  The numbers tried are float64's, as the optimizers' are: CUDA's inverse
is of the number before it is rounded to float32, which numbers that float32 has do not tell.

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


_SUMS = (
    HeldVariant("joined", _itself, _joined, wants_memory=True),
    HeldVariant("factor last", _itself, _factor_last, wants_memory=True),
    HeldVariant("factor first", _itself, _factor_first, wants_memory=True),
)
#: Of each operator, those that are faster first.
_WAYS: Mapping[OpOverload, Sequence[HeldVariant]] = {
    aten.div.Tensor: (
        HeldVariant("product", _inverse, _product),
        HeldVariant("product, rounded first", _inverse_of_rounded, _product),
        HeldVariant("quotient", _itself, _quotient),
    ),
    aten.addcdiv.default: _SUMS,
    aten.addcdiv_.default: _SUMS,
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
    is_sum = way in _SUMS
    count = 3 if is_sum else 1
    tensors = drawn_tensors(random, [_TRIED_ELEMENTS] * count, device)
    if is_sum:
        tensors[-1] = without_zeros(tensors[-1])
    held, beside = torch.empty((), device=device), torch.empty_like(tensors[0])
    for number in tried_numbers(random):
        changed = tensors[0].clone()
        want = function(changed, *tensors[1:], value=number) if is_sum else function(changed, number)
        got = tensors[0].clone()
        held.fill_(float(way.held(number)))
        way.run([got, *tensors[1:]], held, got, beside)
        if not same_bits([got], [want]):
            return False
    return True
