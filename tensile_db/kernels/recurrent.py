"""oneDNN's layer of an LSTM as training runs it, also where no gradients are recorded.

    mkldnn_rnn_layer_in_training(...)    aten::mkldnn_rnn_layer as it is in training

PyTorch's operator asks the thread's grad mode whether to run oneDNN's forward pass for training, which
returns a workspace for the backward pass, or the one for inference, which returns none.  A captured step's
ops run without grad mode, and those of its forward pass need the workspace all the same.

Source: aten/src/ATen/native/mkldnn/RNN.cpp.
"""

from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.library import define, impl, register_fake

aten = torch.ops.aten

_NAME = "tensile::mkldnn_rnn_layer_in_training"

define(
    _NAME,
    "(Tensor input, Tensor weight0, Tensor weight1, Tensor weight2, Tensor weight3, Tensor hx_, Tensor cx_,"
    " bool reverse, int[] batch_sizes, int mode, int hidden_size, int num_layers, bool has_biases,"
    " bool bidirectional, bool batch_first, bool train) -> (Tensor, Tensor, Tensor, Tensor)",
)

#: Of the arguments, those that are tensors.
_TENSORS = 7


def mkldnn_rnn_layer_in_training(*args: Any) -> tuple[torch.Tensor, ...]:
    """Return the output, the last states and the workspace; arguments as aten::mkldnn_rnn_layer has them."""
    with torch.enable_grad():
        made: tuple[torch.Tensor, ...] = aten.mkldnn_rnn_layer.default(*args)
    return made


def _fake(*args: Any) -> tuple[torch.Tensor, ...]:
    *made, _ = aten.mkldnn_rnn_layer.default(*args)
    layouts = tuple((tuple(x.shape), tuple(x.stride()), x.dtype) for x in args[:_TENSORS])
    rest = tuple(tuple(value) if isinstance(value, list) else value for value in args[_TENSORS:])
    nbytes = _workspace_nbytes(layouts, rest, torch.get_num_threads())
    return *made, args[0].new_empty(nbytes, dtype=torch.uint8)


@cache
def _workspace_nbytes(
    layouts: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...],
    rest: tuple[Any, ...],
    _threads: int,
) -> int:
    """Return the size of a layer's workspace, which only oneDNN knows, and tells nobody before it runs.

    So the layer is run once, on zeros: that takes its memory for a moment, on the host.
    """
    with unset_fake_temporarily(), torch.no_grad():
        zeros = [torch.empty_strided(size, stride, dtype=dtype).zero_() for size, stride, dtype in layouts]
        *_, workspace = mkldnn_rnn_layer_in_training(*zeros, *rest)
    return workspace.numel()


impl(_NAME, "CPU", mkldnn_rnn_layer_in_training)
register_fake(_NAME, _fake)

MKLDNN_RNN_LAYER_IN_TRAINING = torch.ops.tensile.mkldnn_rnn_layer_in_training.default
