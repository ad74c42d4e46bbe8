"""Gives fake results the dtypes that the CPU's normalizations give for mixed types.

Under autocast they get 16-bit inputs and float32 parameters, and then keep their statistics in float32; fake
kernels make those of the input's type, half as large as they are.

Source: aten/src/ATen/native/{Normalization,layer_norm,group_norm}.cpp, cpu/mixed_data_type.h.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

#: Normalizations of (input, ...), which return (output, mean, deviation): the places of their parameters.
_PARAMETERS: Mapping[OpOverload, tuple[int, ...]] = {
    aten.native_batch_norm.default: (1, 2, 3, 4),
    aten.native_layer_norm.default: (2, 3),
    aten.native_group_norm.default: (1, 2),
}

_REDUCED = (torch.bfloat16, torch.float16)


def with_real_dtypes(func: OpOverload, args: Sequence[Any], result: Any) -> Any:
    """Return the result of a fake kernel, in the dtypes that the CPU's gives; under the fake mode."""
    if func is aten.native_group_norm_backward.default and result[0] is not None:
        return _of(result[0], args[1].dtype), *result[1:]
    if func not in _PARAMETERS or args[0].dtype not in _REDUCED:
        return result
    given = [args[place] for place in _PARAMETERS[func]]
    if any(parameter is not None and parameter.dtype == torch.float32 for parameter in given):
        return result[0], *(_of(statistic, torch.float32) for statistic in result[1:])
    return result


def _of(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if value.dtype == dtype:
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=dtype, device=value.device)
