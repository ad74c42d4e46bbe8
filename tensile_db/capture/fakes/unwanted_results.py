"""Takes out of fake results what a kernel does not make, for nobody wants it.

Backward operators are told by a mask which gradients are wanted.  The fake kernels of these make all the
same, as tensors that no run would make and every plan would hold memory for.

Source: aten/src/ATen/native/Normalization.cpp, native/cuda/Normalization.cu, `grad_input_mask`;
torch/_decomp/decompositions.py, `native_batch_norm_backward`, which heeds it for weight and bias alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

aten = torch.ops.aten

#: The place of the mask among the arguments; it has an element for each result.
_MASKS: Mapping[OpOverload, int] = {
    aten.batch_norm_backward.default: 9,
    aten.native_batch_norm_backward.default: 9,
}


def without_unwanted(func: OpOverload, args: Sequence[Any], result: Any) -> Any:
    """Return the result of a fake kernel with None for what the real one does not make."""
    if func not in _MASKS:
        return result
    wanted = args[_MASKS[func]]
    return tuple(made if is_wanted else None for made, is_wanted in zip(result, wanted, strict=True))
