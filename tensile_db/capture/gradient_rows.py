"""Gradients of large weights, made some rows at a time, so that none need ever be there as a whole.

A row is what one output of a layer has of the weight.  Of a matrix product, and of a convolution that makes
single pixels, the gradient of some rows depends on the gradients of these outputs alone, and can be made by a
call of its own.  Each part of the optimizer's state then goes with a part of the gradient (`parts.py`).

Kernels may sum up in another order for few or short rows, or for a number of rows that is no multiple of
their blocks.  So parts are equal but for 16 rows, a multiple of 16 and no fewer than 64 each, and rows have
at least 2048 elements.  Long sums of a product are blocked by its other sizes, too: on an Intel Xeon parts
had other bits from 769 summands on.  Those that were tried on CPUs besides, with 1 to 16 threads, all had the
whole's bits, but for convolutions on a CPU without AVX-512: on an AMD EPYC of that kind parts of 11 in 140
had other bits with 2 threads, of 143 in 304 with 16, and of none with one.
On a GPU cuDNN chooses a convolution's kernel by the number of rows, too: on an H100 parts of 64 in 1024 rows
had other bits.  There only products are made by rows.
A convolution adds up the gradient of its bias in an order that depends on the number of rows, so that is made
for all of them at once: with one channel of its input, on which it does not depend.  With 16 threads that had
other bits for some numbers of rows, but for no multiple of 1024.

Source: ours; TSPLIT figure 6 cuts a weight along the same dimension, and merges its gradient.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import torch

from tensile_db.capture import parts
from tensile_db.capture.convolutions import Backward
from tensile_db.capture.nodes import TracedCall, value_of
from tensile_db.capture.parts import Part
from tensile_db.capture.step import View
from tensile_db.capture.storages import StorageKey, storage_key
from tensile_db.capture.trace import Trace

aten = torch.ops.aten

#: A part has a multiple of so many rows ...
_ROWS = 16
#: ... and no fewer than these, ...
_LEAST_ROWS = 64
#: ... each of as many elements or more.
_LEAST_ELEMENTS = 2048
#: A product adds up no more than this for an element: batch, times what stands before the last dimension.
_MOST_SUMMANDS = 512
#: Kinds of devices on which a convolution's parts have the whole's bits.
_CONVOLUTIONS_BY_ROWS = ("cpu",)
#: Rows of a convolution with a bias, all parts together, are a multiple of so many.
_ROWS_WITH_BIAS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCall:
    """What makes the gradient of some rows of a weight, or of the bias; arguments hold Views."""

    args: tuple[Any, ...]
    #: What it makes of the weight's gradient; None: it makes the bias's.
    part: Part | None
    #: Rows in that part.
    rows: int
    #: Places of arguments of which only the shape matters.
    unread: tuple[int, ...] = ()


def gradients_by_rows(trace: Trace, calls: Sequence[TracedCall]) -> Mapping[StorageKey, str]:
    """Return the storages of the gradients that are made in parts, and their parameters' qualified names."""
    gradients = {name: value_of(trace, node) for name, node in trace.gradients.items()}
    keys = {name: storage_key(value) for name, value in gradients.items()}
    of_key = Counter(keys.values())
    touching: dict[StorageKey, list[TracedCall]] = {key: [] for key in of_key}
    for call in calls:
        for key in call.reads | call.updates | call.makes:
            if key in touching:
                touching[key].append(call)
    found = {}
    for name, key in keys.items():
        parameter = value_of(trace, trace.state[f"parameter/{name}"])
        # Else something beside the update takes it.
        alone = of_key[key] == 1 and len(touching[key]) == 1
        if (
            alone
            and _has_rows(parameter)
            and _makes_rows(trace, touching[key][0], gradients[name], parameter)
        ):
            found[key] = name
    return found


def parts_by_rows(parameter: View) -> tuple[Part, ...]:
    """Return the parts in which a parameter whose gradient is made by rows is updated."""
    row = parameter.stride[0]
    bounds = _bounds(parameter.size[0], row * parameter.dtype.itemsize)
    return tuple(Part(begin=begin * row, end=end * row) for begin, end in pairwise(bounds))


def row_calls(call: TracedCall, args: tuple[Any, ...], parameter: View) -> Iterator[RowCall]:
    """Yield the calls that make a parameter's gradient part by part, one that makes a bias's ahead of them.

    args: of the whole call, Views in place of nodes.
    """
    row = parameter.stride[0]
    of_part = _product_of_rows if call.function is aten.mm.default else _convolution_of_rows
    if of_part is _convolution_of_rows and args[Backward.MASK][2]:
        yield _bias(args)
    for part in parts_by_rows(parameter):
        yield of_part(args, part, part.begin // row, part.end // row)


def _product_of_rows(args: tuple[Any, ...], part: Part, begin: int, end: int) -> RowCall:
    return RowCall(args=_with(args, {0: _narrowed(args[0], 0, begin, end)}), part=part, rows=end - begin)


def _convolution_of_rows(args: tuple[Any, ...], part: Part, begin: int, end: int) -> RowCall:
    changed: dict[int, Any] = {
        Backward.GRADIENT: _narrowed(args[Backward.GRADIENT], 1, begin, end),
        Backward.WEIGHT: _narrowed(args[Backward.WEIGHT], 0, begin, end),
        Backward.BIAS_SIZES: None if args[Backward.BIAS_SIZES] is None else [end - begin],
        Backward.MASK: [False, True, False],
    }
    return RowCall(args=_with(args, changed), part=part, rows=end - begin, unread=(Backward.WEIGHT,))


def _bias(args: tuple[Any, ...]) -> RowCall:
    weight, images = (_narrowed(args[place], 1, 0, 1) for place in (Backward.WEIGHT, Backward.INPUT))
    changed: dict[int, Any] = {
        Backward.INPUT: images,
        Backward.WEIGHT: weight,
        Backward.MASK: [False, False, True],
    }
    return RowCall(args=_with(args, changed), part=None, rows=0, unread=(Backward.INPUT, Backward.WEIGHT))


def _bounds(rows: int, row_nbytes: int) -> list[int]:
    """Return where parts of whole rows begin, and where the last one ends."""
    blocks = rows // _ROWS
    count = -(-blocks // max(1, parts.PART_NBYTES // (_ROWS * row_nbytes)))
    return [blocks * part // count * _ROWS for part in range(count + 1)]


def _has_rows(parameter: torch.Tensor) -> bool:
    """Whether a parameter is large and consists of long rows, one behind the other, enough for parts."""
    elements, nbytes = parameter.numel(), parameter.numel() * parameter.element_size()
    if nbytes < 2 * parts.PART_NBYTES or parameter.dim() < 2 or parameter.size(0) % _ROWS:
        return False
    row = elements // parameter.size(0)
    if row < _LEAST_ELEMENTS or row != parameter.stride(0):
        return False
    bounds = _bounds(parameter.size(0), row * parameter.element_size())
    return min(end - begin for begin, end in pairwise(bounds)) >= _LEAST_ROWS


def _makes_rows(trace: Trace, call: TracedCall, gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether a call makes a gradient, laid out as its parameter, row by row."""
    if call.function is aten.mm.default:
        made = call.results[0]
        if value_of(trace, call.args[0]).size(1) > _MOST_SUMMANDS:
            return False
    elif call.function is aten.convolution_backward.default:
        made, of_images = call.results[1], value_of(trace, call.args[Backward.GRADIENT])
        of_input, _, of_bias = call.args[Backward.MASK]
        single = of_images.dim() == 4 and prod(of_images.shape[2:]) == 1
        if not single or call.args[Backward.TRANSPOSED] or call.args[Backward.GROUPS] != 1 or of_input:
            return False
        if of_bias and parameter.size(0) % _ROWS_WITH_BIAS:
            return False
        if gradient.device.type not in _CONVOLUTIONS_BY_ROWS:
            return False
    else:
        return False
    if made is None or storage_key(made) != storage_key(gradient):
        return False
    layouts = [(value.shape, value.stride(), value.storage_offset()) for value in (made, gradient, parameter)]
    return layouts[0] == layouts[1] == layouts[2] and all(
        value_of(trace, node).dtype is torch.float32 for node in call.node.all_input_nodes
    )


def _narrowed(view: View, dim: int, begin: int, end: int) -> View:
    size = (*view.size[:dim], end - begin, *view.size[dim + 1 :])
    return replace(view, size=size, offset=view.offset + begin * view.stride[dim])


def _with(args: tuple[Any, ...], changed: Mapping[int, Any]) -> tuple[Any, ...]:
    return tuple(changed.get(place, value) for place, value in enumerate(args))
