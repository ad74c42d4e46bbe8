"""Gives fake results the sizes that CUDA's kernels give, where PyTorch's fake kernels know no better.

Source: aten/src/ATen/native/cudnn/BatchNorm.cpp, `reserve`; torch/_decomp/decompositions.py,
`_get_batch_norm_reserve_tensor`, which is asked for another operator only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from tensile_db.capture.fakes.correcting import CorrectingFakeMode
from tensile_db.errors import Unsupported

aten = torch.ops.aten

#: The place of `training` among cudnn_batch_norm's arguments, and of `train` among _cudnn_rnn's.
_TRAINING = 5
_RNN_TRAINING = 12

#: (input, training) -> bytes of what cuDNN keeps for the backward pass.
ReserveSize = Callable[[torch.Tensor, bool], int]


class CudaFakeMode(CorrectingFakeMode):  # type: ignore[no-untyped-call] # PyTorch's
    """A fake mode in which cuDNN's batch norm returns as large a reserve as it really does."""

    def __init__(self, *, reserve_nbytes: ReserveSize | None = None, **options: Any) -> None:
        """reserve_nbytes: cuDNN's own answer, by default."""
        super().__init__(**options)
        self._reserve_nbytes = reserve_nbytes or torch._C._get_cudnn_batch_norm_reserve_space_size  # type: ignore[attr-defined] # noqa: SLF001  # it has no public name

    def correct(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Return the result, its reserve as large as cuDNN makes it.

        Raises Unsupported for a recurrent layer in training: how large its reserve is nobody can be asked.
        """
        if func is aten._cudnn_rnn.default and args[_RNN_TRAINING]:  # noqa: SLF001  # it has no public name
            raise Unsupported(
                "recurrent layers, such as nn.LSTM, cannot be trained on a GPU yet",
                hint="Use a worker with --device cpu, or convolutions or attention in their place.",
            )
        if func is not aten.cudnn_batch_norm.default:
            return result
        nbytes = self._reserve_nbytes(args[0], args[_TRAINING]) if args[_TRAINING] else 0
        out, mean, variance, reserve = result
        if nbytes == reserve.numel():
            return result
        return out, mean, variance, torch.empty(nbytes, dtype=torch.uint8, device=reserve.device)
