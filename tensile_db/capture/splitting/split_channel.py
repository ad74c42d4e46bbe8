"""How operators are run in parts along channels or features: each for itself.

A convolution by its output's channels, its backward op by its input's, unless it makes single pixels: the
CPU's kernels may add these up in another order.  Matrix products by their columns; batch norm and pooling by
channels; rows that are gathered and added up by indices, as in graph convolutions, by their features.

Source: TSPLIT section III-A, figure 6 (parameter dimension).
Differs: no part makes a summand of another tensor than a weight's gradient.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from tensile_db.capture.builder import views
from tensile_db.capture.convolutions import Backward, Forward
from tensile_db.capture.splitting.split_dims import (
    VECTOR_UNIT,
    Dims,
    Rule,
    adds_up_in_order,
    channel_of,
    is_scaled,
    pixels_made,
    same_dim,
    view_at,
)
from tensile_db.capture.step import Call
from tensile_db.kernels import codes

aten = torch.ops.aten

#: Channels of a convolution's part: with fewer, its kernels may add up in another order.
CHANNEL_LEAST = 4
#: Channels that a vectorized loop takes at a time; the last ones, fewer, are computed otherwise.
VECTOR_LANES = 16
#: Columns of rows that are added up by indices.  On a GPU, where that is deterministic, a single one is added
#: up by a kernel of its own, and up to 32 are rounded once, more of them after each row: that makes a
#: difference in 16 bits, and in float32 where what they are added to is not zero.
INDEXED_LEAST, INDEXED_LEAST_IN_16_BITS = 4, 33
#: Rows of a matrix product, and columns of its part, for the same reason.
MATRIX_LEAST = 16


def _channel_convolution(call: Call, _: Sequence[int | None]) -> Dims | None:
    transposed, groups = call.args[Forward.TRANSPOSED], call.args[Forward.GROUPS]
    if transposed or groups != 1 or pixels_made(call) == 1:
        return None
    bias = (0,) if view_at(call, 2) is not None else ()
    in_order = adds_up_in_order(call)
    return Dims(args=(None, 0, *bias), results=(1,), least=_least_channels(call), in_order=in_order)


def _channel_convolution_backward(call: Call, _: Sequence[int | None]) -> Dims | None:
    transposed, groups = call.args[Backward.TRANSPOSED], call.args[Backward.GROUPS]
    if transposed or groups != 1 or pixels_made(call) == 1:
        return None
    # Given fewer channels of either side, oneDNN may sum up the gradient of the weights in another order.
    if call.outputs[0] is None:
        # Of weights alone: by the output's channels, each of which has weights of its own.
        made = tuple(None if output is None else 0 for output in call.outputs)
        return Dims(args=(1, None, 0), results=made, least=CHANNEL_LEAST, in_order=False)
    once = frozenset({2}) if call.outputs[2] is not None else frozenset()
    return Dims(
        args=(None, 1, 1),
        results=(1, _if_made(call, 1, 1), None),
        once=once,
        least=_least_channels(call),
        in_order=call.outputs[1] is None and adds_up_in_order(call),
    )


def _least_channels(call: Call) -> int:
    """Return the least channels of a convolution's part that get the kernel that the whole gets.

    A convolution by 1 x 1 of channels that lie side by side is a matrix product.
    """
    made = next(view for view in call.outputs if view is not None)
    side_by_side = len(made.size) == 4 and made.stride[1] == 1
    return VECTOR_LANES if side_by_side else CHANNEL_LEAST


def _channel_batch_norm(call: Call, _: Sequence[int | None]) -> Dims | None:
    given = list(views(call.args))
    if len(given[0].size) != 4:
        return None
    side_by_side = given[0].stride[1] == 1
    if prod(given[0].size[2:]) == 1 and any(len(view.size) == 4 and view.stride[3] != 1 for view in given):
        # Single pixels lie as in either memory format: a part of them may get another kernel than the whole.
        return None
    args = tuple(1 if len(view.size) == 4 else 0 for view in given)
    # Where channels lie side by side, the kernel's loops run over them.
    multiple = VECTOR_LANES if side_by_side else 1
    # In evaluation mode it returns two statistics without elements.
    empty = frozenset(place for place, made in enumerate(call.outputs) if made is not None and 0 in made.size)
    results = tuple(None if place in empty else dim for place, dim in enumerate(_channels_of(call)))
    return Dims(args=args, results=results, once=empty, multiple=multiple)


def _channel_pooling(call: Call, _: Sequence[int | None]) -> Dims | None:
    given = list(views(call.args))
    if any(len(view.size) != 4 for view in given):
        return None
    return Dims(args=(1,) * len(given), results=same_dim(call, 1))


def _channel_product(first: int) -> Rule:
    def rule(call: Call, _: Sequence[int | None]) -> Dims | None:
        bias = view_at(call, 0)
        if first and (bias is None or len(bias.size) != 1):
            return None
        rows = view_at(call, first)
        if rows is None or rows.size[0] < MATRIX_LEAST:
            return None
        # BLAS cuts long sums into blocks by the number of columns, too, and of threads.
        return Dims(
            args=(*(0,) * first, None, 1),
            results=(1,),
            least=MATRIX_LEAST,
            multiple=MATRIX_LEAST,
            in_order=False,
        )

    return rule


def _channel_mean(call: Call, _: Sequence[int | None]) -> Dims | None:
    view = next(views(call.args))
    over = {dim % len(view.size) for dim in call.args[1] or range(len(view.size))}
    keeps = bool(call.args[2]) if len(call.args) > 2 else False
    if len(view.size) != 4 or over != {2, 3} or not keeps:
        return None
    # Of channels that lie side by side, the loop takes as many at a time as there are, up to a few.
    return Dims(args=(1,), results=(1,), in_order=False)


def _channel_of_indexed(call: Call, _: Sequence[int | None]) -> Dims | None:
    """Split what is taken from places along a dimension, or added up there: each channel by itself."""
    first, _places, *added = views(call.args)
    if len(first.size) < 2:
        return None
    channel = channel_of(first)
    if call.args[1] % len(first.size) == channel:
        return None
    in_float32 = first.dtype is torch.float32
    return Dims(
        args=(channel, None, *(channel,) * len(added)),
        results=(channel,),
        least=INDEXED_LEAST if in_float32 or not added else INDEXED_LEAST_IN_16_BITS,
        multiple=VECTOR_UNIT if is_scaled(call) else 1,
    )


def _channel_filled(call: Call, _: Sequence[int | None]) -> Dims | None:
    made = call.outputs[0]
    if made is None or len(made.size) < 2:
        return None
    return Dims(args=(), results=(channel_of(made),))


def _channel_of_codes(call: Call, _: Sequence[int | None]) -> Dims | None:
    """Split what codes are made from, in rows (batch, channels, ...), or a gradient with codes beside it."""
    first, *codes_given = views(call.args)
    channel = channel_of(first) if codes_given else 1
    return Dims(args=(channel, *(1,) * len(codes_given)), results=(channel,))


def _channels_of(call: Call) -> tuple[int | None, ...]:
    """Return the channels' dimension of each result: 1 of images, 0 of what has one value a channel."""
    return tuple(None if output is None else (1 if len(output.size) == 4 else 0) for output in call.outputs)


def _if_made(call: Call, place: int, dim: int) -> int | None:
    return dim if call.outputs[place] is not None else None


CHANNEL_RULES: Mapping[Any, Rule] = {
    aten.convolution.default: _channel_convolution,
    aten.convolution_backward.default: _channel_convolution_backward,
    aten.native_batch_norm.default: _channel_batch_norm,
    aten.native_batch_norm_backward.default: _channel_batch_norm,
    aten.max_pool2d_with_indices.default: _channel_pooling,
    aten.max_pool2d_with_indices_backward.default: _channel_pooling,
    aten.avg_pool2d.default: _channel_pooling,
    aten.avg_pool2d_backward.default: _channel_pooling,
    codes.MAX_POOL2D_BACKWARD_OF_CODES: _channel_of_codes,
    codes.MUL_OF_SIGNS: _channel_of_codes,
    codes.NATIVE_DROPOUT_BACKWARD_OF_SIGNS: _channel_of_codes,
    codes.PACK_SIGNS: _channel_of_codes,
    codes.PACK_UINT16: _channel_of_codes,
    codes.THRESHOLD_BACKWARD_OF_SIGNS: _channel_of_codes,
    aten.mm.default: _channel_product(0),
    aten.addmm.default: _channel_product(1),
    aten.full.default: _channel_filled,
    aten.index_add.default: _channel_of_indexed,
    aten.index_select.default: _channel_of_indexed,
    aten.mean.dim: _channel_mean,
}
