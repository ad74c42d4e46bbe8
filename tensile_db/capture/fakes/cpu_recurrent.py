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


def _with_biases_apart(result: Sequence[Any]) -> Sequence[Any]:
    """The fake kernel returns one gradient for both biases, the real one returns two."""
    *before, of_bias, _, of_hidden, of_cell = result
    return (*before, of_bias, torch.empty_like(of_bias), of_hidden, of_cell)


#: Corrections of what PyTorch's fake kernels return.
CORRECTIONS: Mapping[OpOverload, Callable[[Sequence[Any]], Sequence[Any]]] = {
    aten.mkldnn_rnn_layer.default: _without_workspace,
    aten.mkldnn_rnn_layer_backward.default: _with_biases_apart,
}
