"""oneDNN's layers of LSTMs, as the CPU's kernels run them in training and in evaluation.

Source: aten/src/ATen/native/mkldnn/RNN.cpp.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from tensile_db.kernels.recurrent import MKLDNN_RNN_LAYER_IN_TRAINING

aten = torch.ops.aten


def layer_in_training(*args: Any) -> Any:
    """Do what mkldnn_rnn_layer does in training; NotImplemented where no gradients are recorded."""
    return MKLDNN_RNN_LAYER_IN_TRAINING(*args) if torch.is_grad_enabled() else NotImplemented


def _without_workspace(result: Sequence[Any]) -> Sequence[Any]:
    """The real kernel returns none where no gradients are recorded; the fake one returns an empty one."""
    return (*result[:3], None)


def _in_float32_apart(result: Sequence[Any]) -> Sequence[Any]:
    """The real kernel's gradients are float32, whatever it is given, and one for each bias.

    The fake one returns one for both biases, and in PyTorch 2.11 in the dtype that it is given.
    """
    return tuple(torch.empty_like(each, dtype=torch.float32) for each in result)


#: Corrections of what PyTorch's fake kernels return.
CORRECTIONS: Mapping[OpOverload, Callable[[Sequence[Any]], Sequence[Any]]] = {
    aten.mkldnn_rnn_layer.default: _without_workspace,
    aten.mkldnn_rnn_layer_backward.default: _in_float32_apart,
}
