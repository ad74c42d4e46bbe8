"""Gradients of large weights, made some rows at a time, so that none need ever be there as a whole.

A row is what one output of a layer has of the weight.  Of a matrix product, and of a convolution that makes
single pixels, the gradient of some rows depends on the gradients of these outputs alone, and can be made by a
call of its own.  Each part of the optimizer's state then goes with a part of the gradient (`parts.py`).

As far as tests on CPUs show, with up to 64 threads, the parts have the whole gradient's bits: a multiple of
16 rows each, for kernels compute odd ones otherwise; sums of up to 512 summands, for many threads share
longer ones.  A convolution adds up the gradient of its bias in an order that depends on the number of rows,
so that is made for all of them at once: with one channel of its input, on which it does not depend.

Source: ours; TSPLIT figure 6 cuts a weight along the same dimension, and merges its gradient.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from tensile_db.capture import parts
from tensile_db.capture.loss_scale import SCALE
from tensile_db.capture.nodes import StorageKey, TracedCall, storage_key, value_of
from tensile_db.capture.parts import Part
from tensile_db.capture.step import View
from tensile_db.capture.trace import Trace

aten = torch.ops.aten

#: A part's rows are a multiple of so many ...
_ROWS = 16
#: ... and each element is a sum over no more rows of the batch.
_MOST_SUMMANDS = 512
#: Of convolution_backward's arguments.
_GRADIENT, _INPUT, _WEIGHT, _BIAS_SIZES, _TRANSPOSED, _GROUPS, _MASK = 0, 1, 2, 3, 7, 9, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCall:
    """What makes the gradient of some rows of a weight, or of the bias; arguments hold Views."""

    args: tuple[Any, ...]
    #: What it makes of the weight's gradient; None: it makes the bias's.
    part: Part | None
    #: Rows in that part.
    rows: int
    #: Arguments of which only the shape matters.
    unread: tuple[View, ...]


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
        alone = of_key[key] == 1 and len(touching[key]) == 1 and SCALE not in trace.state
        if (
            alone
            and _has_rows(parameter)
            and _makes_rows(trace, touching[key][0], gradients[name], parameter)
        ):
            found[key] = name
    return found


def parts_by_rows(view: View) -> tuple[Part, ...]:
    """Return the parts of a parameter's dense view, each of whole rows."""
    return parts.parts_of(view, _ROWS * view.stride[0])


def row_calls(call: TracedCall, args: tuple[Any, ...], parameter: View) -> Iterator[RowCall]:
    """Yield the calls that make a parameter's gradient part by part, one that makes a bias's ahead of them.

    args: of the whole call, Views in place of nodes.
    """
    row = parameter.stride[0]
    if call.function is not aten.mm.default and args[_MASK][2]:
        weight, images = (_narrowed(args[place], 1, 0, 1) for place in (_WEIGHT, _INPUT))
        own = _with(args, {_INPUT: images, _WEIGHT: weight, _MASK: [False, False, True]})
        yield RowCall(args=own, part=None, unread=(images, weight), rows=0)
    for part in parts_by_rows(parameter):
        begin, end = part.begin // row, part.end // row
        unread: tuple[View, ...] = ()
        if call.function is aten.mm.default:
            own = _with(args, {0: _narrowed(args[0], 0, begin, end)})
        else:
            weight = _narrowed(args[_WEIGHT], 0, begin, end)
            changed = {_GRADIENT: _narrowed(args[_GRADIENT], 1, begin, end), _WEIGHT: weight}
            sizes = args[_BIAS_SIZES] and [end - begin]
            own = _with(args, {**changed, _BIAS_SIZES: sizes, _MASK: [False, True, False]})
            unread = (weight,)
        yield RowCall(args=own, part=part, unread=unread, rows=end - begin)


def _has_rows(parameter: torch.Tensor) -> bool:
    """Whether a parameter consists of rows, one behind the other, enough for parts."""
    nbytes = parameter.numel() * parameter.element_size()
    if parameter.dim() < 2 or parameter.size(0) % _ROWS or nbytes < 2 * parts.PART_NBYTES:
        return False
    if parameter.dtype is not torch.float32 or parameter.stride(0) * parameter.size(0) != parameter.numel():
        return False
    return _ROWS * nbytes <= parts.PART_NBYTES * parameter.size(0)


def _makes_rows(trace: Trace, call: TracedCall, gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether a call makes a gradient, laid out as its parameter, row by row."""
    if call.function is aten.mm.default:
        made, summands = call.results[0], value_of(trace, call.args[0]).size(1)
    elif call.function is aten.convolution_backward.default:
        made, shape = call.results[1], value_of(trace, call.args[_GRADIENT]).shape
        summands = shape[0] * prod(shape[2:])
        if call.args[_TRANSPOSED] or call.args[_GROUPS] != 1 or call.args[_MASK][0] or summands != shape[0]:
            return False
    else:
        return False
    if summands > _MOST_SUMMANDS:
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
