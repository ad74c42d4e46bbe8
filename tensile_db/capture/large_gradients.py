"""Backward ops of convolutions with large weights, in two: the gradient of the input, and that of the weight.

Nobody waits for the gradient of a weight but its update, so that alone it can be made when there is room for
it.  ATen computes the two by separate kernels anyhow (`convolution_backward` in
aten/src/ATen/native/Convolution.cpp asks for each by a mask), and the bits are the same.  A matrix product's
two gradients are two ops already.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from tensile_db.capture.convolutions import Backward
from tensile_db.capture.nodes import TracedCall, value_of
from tensile_db.capture.parts import PART_NBYTES
from tensile_db.capture.storages import storage_key
from tensile_db.capture.trace import Trace

aten = torch.ops.aten

#: Smaller weights' gradients are not worth another op.
LEAST_NBYTES = 2 * PART_NBYTES


def apart(trace: Trace, calls: Sequence[TracedCall]) -> Iterator[TracedCall]:
    """Yield the calls, those that make a large weight's gradient beside another one in two."""
    for call in calls:
        if call.function is aten.convolution_backward.default and _is_large(trace, call):
            yield _asked_for(call, (True, False, False))
            yield _asked_for(call, (False, True, call.args[Backward.MASK][2]))
        else:
            yield call


def _is_large(trace: Trace, call: TracedCall) -> bool:
    of_input, of_weight, _ = call.args[Backward.MASK]
    weight: torch.Tensor = value_of(trace, call.args[Backward.WEIGHT])
    return of_input and of_weight and weight.untyped_storage().nbytes() >= LEAST_NBYTES


def _asked_for(call: TracedCall, mask: tuple[bool, bool, bool]) -> TracedCall:
    """Return the call with some of its results only."""
    args: list[Any] = list(call.args)
    args[Backward.MASK] = list(mask)
    results = tuple(result if wanted else None for result, wanted in zip(call.results, mask, strict=True))
    made = {storage_key(result) for result in results if isinstance(result, torch.Tensor)}
    return replace(call, args=tuple(args), results=results, makes=call.makes & made)
