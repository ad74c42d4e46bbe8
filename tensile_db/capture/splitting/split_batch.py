"""How operators are run in parts along the batch: each row for itself.

Convolutions, matrix products, pooling, normalization of rows, attention; gradients of weights are sums over
the rows, and so the sums of what the parts make.

Source: TSPLIT section III-A, figure 6 (sample dimension).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tensile_db.capture.builder import views
from tensile_db.capture.splitting.split_dims import (
    Dims,
    Rule,
    adds_up_in_order,
    pixels_made,
    same_dim,
    view_at,
)
from tensile_db.capture.step import Call, View
from tensile_db.kernels import codes

aten = torch.ops.aten

# ATen's own names begin with underscores, and the choice of a kernel has no public name.
# ruff: noqa: SLF001

#: Rows of a matrix product's part: with fewer, BLAS may add up in another order.
MATRIX_LEAST = 16


def _leading(call: Call, known: Sequence[int | None]) -> Dims | None:
    """Split every argument, and every result, by its first dimension."""
    if any(dim != 0 for dim in known):
        return None
    return Dims(args=(0,) * len(known), results=same_dim(call, 0))


def _as_known(call: Call, known: Sequence[int | None]) -> Dims | None:
    """Split what codes are made from, or a gradient with codes beside it, wherever the batch is in them."""
    if any(dim is None for dim in known):
        return None
    return Dims(args=tuple(known), results=same_dim(call, known[0] or 0))


def _convolution(call: Call, known: Sequence[int | None]) -> Dims | None:
    if known[0] != 0:
        return None
    rest = (None,) * (len(known) - 1)
    return Dims(
        args=(0, *rest),
        results=(0,),
        least=_convolution_least(call, 0, 1, call.args[3:9]),
        in_order=adds_up_in_order(call),
    )


def _convolution_backward(call: Call, known: Sequence[int | None]) -> Dims | None:
    if known[0] != 0 or known[1] != 0:
        return None
    made = [place for place, output in enumerate(call.outputs) if output is not None]
    return Dims(
        args=(0, 0, None),
        results=(0 if call.outputs[0] is not None else None, None, None),
        sums=frozenset(place for place in made if place),
        least=_convolution_least(call, 1, 2, call.args[4:10]),
        in_order=adds_up_in_order(call),
    )


def _batch_norm(call: Call, known: Sequence[int | None]) -> Dims | None:
    """Split a batch norm in evaluation mode: each pixel by itself, by statistics that are given."""
    given = list(views(call.args))
    is_training = call.args[5]
    if is_training or known[0] != 0 or len(given[0].size) != 4:
        return None
    rest = frozenset(place for place, made in enumerate(call.outputs) if place and made is not None)
    return Dims(args=(0, *(None for _ in given[1:])), results=(0, None, None), once=rest)


def _convolution_least(call: Call, features: int, weight: int, parameters: Sequence[Any]) -> int:
    """Return the least part of the batch for which ATen chooses the kernel that it chooses for the whole.

    It goes by the batch's size, too: where a single thread runs, few rows of a 1x1 convolution are multiplied
    as a matrix.  And what few pixels oneDNN's kernels make they add up in another order than many.
    """
    image, kernel = view_at(call, features), view_at(call, weight)
    assert image is not None
    assert kernel is not None

    def backend(rows: int) -> Any:
        stride, padding, dilation, transposed, output_padding, groups = parameters
        return torch._C._select_conv_backend(
            _unbacked((rows, *image.size[1:]), image),
            _unbacked(kernel.size, kernel),
            None,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
        )

    least = image.size[0]
    whole = backend(least)
    few = -(-MATRIX_LEAST // pixels_made(call))
    while least > few and backend(least - 1) == whole:
        least -= 1
    return least


def _unbacked(shape: Sequence[int], like: View) -> torch.Tensor:
    """Return a tensor of this shape that takes no memory: only its size bears on the choice."""
    return torch.empty(1, dtype=like.dtype).expand(tuple(shape))


def _matrix_product(first: int) -> Rule:
    """Matrix products, mm and addmm, whose first matrix is the argument at `first`."""

    def rule(call: Call, known: Sequence[int | None]) -> Dims | None:
        left, right = known[first], known[first + 1]
        ahead = (None,) * first
        matrix = view_at(call, first)
        assert matrix is not None
        if left == 0 and right is None:
            # A bias with rows of its own would have to be split with them.
            bias = view_at(call, 0)
            if first and (bias is None or len(bias.size) != 1):
                return None
            in_order = adds_up_in_order(call)
            return Dims(args=(*ahead, 0, None), results=(0,), least=MATRIX_LEAST, in_order=in_order)
        if left == 1 and right == 0 and not first:
            return Dims(args=(1, 0), results=(None,), sums=frozenset({0}))
        return None

    return rule


def _batched_product(call: Call, known: Sequence[int | None]) -> Dims | None:
    if tuple(known) != (0, 0):
        return None
    return Dims(args=(0, 0), results=(0,), in_order=adds_up_in_order(call))


def _layer_norm(call: Call, known: Sequence[int | None]) -> Dims | None:
    if known[0] != 0:
        return None
    return Dims(args=(0, *(None,) * (len(known) - 1)), results=(0, 0, 0))


def _layer_norm_backward(call: Call, known: Sequence[int | None]) -> Dims | None:
    if tuple(known[:4]) != (0, 0, 0, 0):
        return None
    sums = frozenset(place for place in (1, 2) if call.outputs[place] is not None)
    rest = (None,) * (len(known) - 4)
    return Dims(args=(0, 0, 0, 0, *rest), results=(_if_made(call, 0, 0), None, None), sums=sums)


def _along(dim_argument: int) -> Rule:
    """Ops that work along one dimension; the batch must be another one."""

    def rule(call: Call, known: Sequence[int | None]) -> Dims | None:
        view = next(views(call.args))
        along = call.args[dim_argument] % len(view.size)
        if any(dim != 0 for dim in known) or along == 0:
            return None
        return Dims(args=(0,) * len(known), results=same_dim(call, 0))

    return rule


def _concatenation(call: Call, known: Sequence[int | None]) -> Dims | None:
    given, made = list(views(call.args)), call.outputs[0]
    assert made is not None
    along = (call.args[1] if len(call.args) > 1 else 0) % len(made.size)
    if any(dim not in (0, None) for dim in known) or along == 0:
        return None
    # What is no part of the batch is the same for every row: only its first dimension's size counts.
    if any(view.size[0] != made.size[0] for view in given):
        return None
    return Dims(args=(0,) * len(given), results=(0,))


def _stack(call: Call, known: Sequence[int | None]) -> Dims | None:
    made = call.outputs[0]
    assert made is not None
    along = (call.args[1] if len(call.args) > 1 else 0) % len(made.size)
    if any(dim != 0 for dim in known):
        return None
    return Dims(args=(0,) * len(known), results=(1 if along == 0 else 0,))


def _clone(call: Call, known: Sequence[int | None]) -> Dims | None:
    return Dims(args=(known[0],), results=(known[0],))


def _reduction(call: Call, known: Sequence[int | None]) -> Dims | None:
    view, made = next(views(call.args)), call.outputs[0]
    assert made is not None
    over = {dim % len(view.size) for dim in call.args[1] or range(len(view.size))}
    batch = known[0]
    assert batch is not None
    if batch in over:
        if call.function is not aten.sum.dim_IntList:
            return None
        return Dims(args=(batch,), results=(None,), sums=frozenset({0}))
    keeps = bool(call.args[2]) if len(call.args) > 2 else False
    result = batch if keeps else batch - sum(dim < batch for dim in over)
    # Each row by itself; a single one is reduced by all threads, in another order than several.
    return Dims(args=(batch,), results=(result,), in_order=False) if batch == 0 else None


def _picking(call: Call, known: Sequence[int | None]) -> Dims | None:
    view = next(views(call.args))
    if call.args[1] % len(view.size) == 0 or tuple(known) != (0, 0):
        return None
    return Dims(args=(0, 0), results=(0,))


def _loss_backward(call: Call, known: Sequence[int | None]) -> Dims | None:
    """Split the gradient of a loss that is one number: each row's is made of that and the rows' weight."""
    given = list(views(call.args))
    if given[0].size != () or tuple(known[1:3]) != (0, 0) or len(given[2].size) != 1:
        return None
    # What is left are the sum of the rows' weights, and those of the classes where they have any.
    return Dims(args=(None, 0, 0, *(None for _ in given[3:])), results=(0,))


def _select_backward(call: Call, known: Sequence[int | None]) -> Dims | None:
    if known[0] != 0 or call.args[2] % len(call.args[1]) == 0:
        return None
    return Dims(args=(0,), results=(0,))


def _if_made(call: Call, place: int, dim: int) -> int | None:
    return dim if call.outputs[place] is not None else None


BATCH_RULES: Mapping[Any, Rule] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.max_pool2d_with_indices.default: _leading,
    aten.max_pool2d_with_indices_backward.default: _leading,
    codes.MAX_POOL2D_BACKWARD_OF_CODES: _as_known,
    codes.MUL_OF_SIGNS: _as_known,
    codes.PACK_SIGNS: _as_known,
    codes.PACK_UINT16: _as_known,
    codes.NATIVE_DROPOUT_BACKWARD_OF_SIGNS: _as_known,
    codes.THRESHOLD_BACKWARD_OF_SIGNS: _as_known,
    aten.avg_pool2d.default: _leading,
    aten.avg_pool2d_backward.default: _leading,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.mm.default: _matrix_product(0),
    aten.addmm.default: _matrix_product(1),
    aten.bmm.default: _batched_product,
    aten._softmax.default: _along(1),
    aten._softmax_backward_data.default: _along(2),
    aten._log_softmax.default: _along(1),
    aten._log_softmax_backward_data.default: _along(2),
    aten._scaled_dot_product_flash_attention_for_cpu.default: _leading,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _leading,
    aten.cat.default: _concatenation,
    aten.stack.default: _stack,
    aten.clone.default: _clone,
    aten.sum.dim_IntList: _reduction,
    aten.mean.dim: _reduction,
    aten.gather.default: _picking,
    aten.nll_loss_backward.default: _loss_backward,
    aten.select_backward.default: _select_backward,
}
