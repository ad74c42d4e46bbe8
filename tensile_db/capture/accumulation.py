"""Sums gradients in place where eager PyTorch does.

Where a value was used twice, autograd adds up the gradients of its uses.  Eager does so in place if nothing
else holds the first of them; under a trace it never can, since the tracer holds everything.  This pass puts
eager's sums back: the same bits, and no third buffer.

Source: torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import fx

from tensile_db.capture.nodes import TracedCall, value_of
from tensile_db.capture.storages import StorageKey, storage_key
from tensile_db.capture.trace import Trace

aten = torch.ops.aten


def sum_in_place(
    trace: Trace, calls: Sequence[TracedCall]
) -> tuple[list[TracedCall], Mapping[StorageKey, StorageKey]]:
    """Return the calls with eager's in-place sums, and for each storage so saved the one that replaces it."""
    last_use: dict[StorageKey, int] = {}
    made_backward: set[StorageKey] = set()
    for index, call in enumerate(calls):
        last_use.update(dict.fromkeys(call.reads | call.updates, index))
        if call.node.name in trace.backward:
            made_backward |= call.makes
    returned = {storage_key(value_of(trace, node)) for node in (trace.result, *trace.gradients.values())}
    free_to_change = made_backward - returned
    replaced: dict[StorageKey, StorageKey] = {}
    rewritten = []
    for index, call in enumerate(calls):
        target = _sum_target(trace, call)
        if target is not None and target in free_to_change and last_use[target] == index:
            (made,) = call.makes
            replaced[made] = replaced.get(target, target)
            in_place = dataclasses.replace(
                call, function=aten.add_.Tensor, updates=frozenset({target}), makes=frozenset()
            )
            rewritten.append(in_place)
        else:
            rewritten.append(call)
    return rewritten, replaced


def _sum_target(trace: Trace, call: TracedCall) -> StorageKey | None:
    """Return the storage that the call could sum into, by the form of its arguments."""
    if call.function is not aten.add.Tensor or call.node.name not in trace.backward or call.kwargs:
        return None
    first, second = call.args
    if not (isinstance(first, fx.Node) and isinstance(second, fx.Node)):
        return None
    old, added, total = value_of(trace, first), value_of(trace, second), value_of(trace, call.node)
    fills = old.untyped_storage().nbytes() == total.numel() * total.dtype.itemsize
    if fills and _layout(old) == _layout(total) and storage_key(old) != storage_key(added):
        return storage_key(old)
    return None


def _layout(value: torch.Tensor) -> tuple[object, ...]:
    return value.dtype, value.shape, value.stride(), value.storage_offset()
