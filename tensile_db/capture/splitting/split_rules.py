"""How ATen operators can be run in parts with the same result, argument by argument.

Along the batch: convolutions, matrix products, pooling, normalization of rows, batch norm in evaluation mode,
attention and elementwise ops, each row for itself; gradients of weights are sums over the rows, and so the
sums of what the parts make.
Along the channels: a convolution by its output's channels, its backward op by its input's; matrix products
by their columns; batch norm, pooling, rows gathered or added up by indices and elementwise ops, each channel
for itself.
What draws random numbers stays whole, so that the numbers are drawn in eager's order; so does what needs the
whole batch (batch norm while training) and what is not in this table.

Source: TSPLIT sections III-A and V-A; figure 6.
"""

from collections.abc import Sequence
from typing import Any

import torch

from tensile_db.capture.builder import views
from tensile_db.capture.convolutions import Backward
from tensile_db.capture.splitting.split_batch import BATCH_RULES
from tensile_db.capture.splitting.split_channel import CHANNEL_RULES
from tensile_db.capture.splitting.split_dims import Dims, channel_of, elementwise, is_elementwise, made_by
from tensile_db.capture.step import Call
from tensile_db.graph import Axis

aten = torch.ops.aten


def batch_dims(call: Call, known: Sequence[int | None]) -> Dims | None:
    """Return how a call is split along the batch; known: the batch's dimension in each View argument."""
    rule = BATCH_RULES.get(call.function)
    if rule is None and is_elementwise(call):
        rule = elementwise
    if rule is None or all(dim is None for dim in known):
        return None
    return rule(call, known)


def channel_dims(call: Call) -> Dims | None:
    """Return how a call is split along the channels of what it makes or, going backward, of its input."""
    given = list(views((call.args, call.kwargs)))
    rule = CHANNEL_RULES.get(call.function)
    if rule is not None:
        return rule(call, ())
    if not is_elementwise(call):
        return None
    made = made_by(call)
    if made is None or len(made.size) < 2:
        return None
    channel = channel_of(made)
    known = [channel if view.size == made.size else None for view in given]
    return elementwise(call, known)


def part_constants(call: Call, axis: Axis, part: int, taken: int, extent: int) -> tuple[Any, ...]:
    """Return the arguments of a part, before their Views are replaced: sizes of parts, masks of results."""
    args = list(call.args)
    if call.function is aten.convolution_backward.default and axis is Axis.CHANNEL:
        if call.outputs[0] is None:
            if args[Backward.BIAS_SIZES] == [extent]:
                args[Backward.BIAS_SIZES] = [taken]
        elif part:
            args[Backward.MASK] = [*args[Backward.MASK][:2], False]
    if call.function is aten.full.default:
        made = call.outputs[0]
        assert made is not None
        channel = channel_of(made)
        args[0] = [taken if dim == channel else size for dim, size in enumerate(args[0])]
    if call.function is aten.select_backward.default:
        args[1] = [args[1][0] * taken // extent, *args[1][1:]]
    return tuple(args)
