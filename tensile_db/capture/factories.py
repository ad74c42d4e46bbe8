"""Rewrites ops that look at a tensor only for its shape, so that they do not depend on its value.

`empty_like(x)` would keep x in memory until it runs, and make whatever follows wait for x.
"""

from typing import Any

import torch

aten = torch.ops.aten

_UNINITIALIZED = frozenset({aten.empty_like.default, aten.new_empty.default, aten.new_empty_strided.default})
_CONSTANT = {
    aten.zeros_like.default: 0,
    aten.ones_like.default: 1,
    aten.new_zeros.default: 0,
    aten.new_ones.default: 1,
}


def without_template(
    function: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> tuple[torch._ops.OpOverload, tuple[Any, ...], dict[str, Any]]:
    """Return the call, or one that makes the same `result` (a fake tensor) without a template."""
    if function is aten.lift_fresh.default:
        # Returns its argument; here every call makes a storage of its own.
        return aten.clone.default, args, kwargs
    if function in _UNINITIALIZED:
        layout = (list(result.shape), list(result.stride()))
        return aten.empty_strided.default, layout, {"dtype": result.dtype, "device": result.device}
    if function in _CONSTANT and result.is_contiguous():
        size_and_value = (list(result.shape), _CONSTANT[function])
        return aten.full.default, size_and_value, {"dtype": result.dtype, "device": result.device}
    return function, args, kwargs
