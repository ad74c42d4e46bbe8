"""A captured step with tensors kept as codes: the calls that go with a packed graph.

Source: ours; Jain et al., Gist (ISCA 2018), section 3.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch

from tensile_db.capture.codes import drawn_factor, drawn_numbers, is_contiguous
from tensile_db.capture.splitting.split_step import split_step
from tensile_db.capture.step import Call, CapturedStep, View
from tensile_db.graph import OpId, TensorId
from tensile_db.kernels import codes
from tensile_db.scheduler.packing.packed_graph import PACK, PackedGraph, known_packed_graph, rows_of
from tensile_db.scheduler.plan import Rewriting

aten = torch.ops.aten

_PACKS = {str(function): function for function in (codes.PACK_SIGNS, codes.PACK_UINT16)}
assert set(_PACKS) == set(PACK.values())


def planned_step(step: CapturedStep, rewriting: Rewriting, device: torch.device) -> CapturedStep:
    """Return the step as a plan has it; its graph is the plan's."""
    return split_step(packed_step(step, rewriting.packed), rewriting.splits, device)


def packed_step(step: CapturedStep, packed: tuple[TensorId, ...]) -> CapturedStep:
    """Return the step with tensors packed; its graph is what `known_packed_graph` makes of the step's."""
    if not packed:
        return step
    made = known_packed_graph(step.graph, packed)
    return replace(step, graph=made.graph, calls=_Packing(step, made).calls())


class _Packing:
    def __init__(self, step: CapturedStep, made: PackedGraph) -> None:
        self._step = step
        self._made = made
        self._drawn = drawn_numbers(step)

    def calls(self) -> tuple[Call, ...]:
        """Return the packed graph's calls."""
        coded = {code: whole for whole, code in self._made.codes.items()}
        calls: list[Call] = []
        for op, made_from in zip(self._made.graph.ops, self._made.ops, strict=True):
            if made_from is None:
                (code,) = op.writes
                calls.append(self._pack(op.id, op.target, coded[code]))
                continue
            call = self._step.calls[made_from]
            if op.target != self._step.graph.ops[made_from].target:
                call = _WITH_CODES[call.function](self, call)
            assert call.function is None or str(call.function) == op.target, f"op {op.id} is {op.target}"
            calls.append(replace(call, op=op.id))
        return tuple(calls)

    def _pack(self, op: OpId, target: str, tensor: TensorId) -> Call:
        whole = self._step.graph.tensors[tensor]
        dtype = getattr(torch, whole.dtype)
        return Call(
            op=op,
            function=_PACKS[target],
            args=(_in_line(tensor, dtype, rows_of(self._step.graph, tensor)),),
            kwargs={},
            outputs=(self._code(tensor),),
            draws_from_default_generator=False,
            recompute_args=None,
        )

    def _code(self, tensor: TensorId) -> View:
        made = self._made.graph.tensors[self._made.codes[tensor]]
        return _in_line(made.id, getattr(torch, made.dtype), made.shape)

    def threshold_backward(self, call: Call) -> Call:
        grad, x, _ = call.args
        args = (grad, self._code(x.tensor), _order(x))
        return replace(call, function=codes.THRESHOLD_BACKWARD_OF_SIGNS, args=args)

    def mul(self, call: Call) -> Call:
        factors = drawn_factor(call, self._drawn)
        assert factors is not None, "one of the factors was drawn"
        other, drawn = factors
        args = (other, self._code(drawn.tensor), _order(drawn), self._drawn[drawn.tensor])
        return replace(call, function=codes.MUL_OF_SIGNS, args=args)

    def native_dropout_backward(self, call: Call) -> Call:
        grad, mask, scale = call.args
        args = (grad, self._code(mask.tensor), _order(mask), scale)
        return replace(call, function=codes.NATIVE_DROPOUT_BACKWARD_OF_SIGNS, args=args)

    def max_pool2d_backward(self, call: Call) -> Call:
        grad, images, kernel_size, stride, padding, dilation, ceil_mode, indices = call.args
        if indices.tensor in self._made.codes:
            code = self._code(indices.tensor)
            # Laid out like the indices: so it is split like them.
            indices = replace(indices, tensor=code.tensor, dtype=code.dtype)
        args = (
            grad,
            list(images.size[2:]),
            not is_contiguous(images),
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            indices,
        )
        return replace(call, function=codes.MAX_POOL2D_BACKWARD_OF_CODES, args=args)


_WITH_CODES: Mapping[Any, Callable[[_Packing, Call], Call]] = {
    aten.threshold_backward.default: _Packing.threshold_backward,
    aten.mul.Tensor: _Packing.mul,
    aten.native_dropout_backward.default: _Packing.native_dropout_backward,
    aten.max_pool2d_with_indices_backward.default: _Packing.max_pool2d_backward,
}


def _order(view: View) -> list[int]:
    """Return the dimensions of a view as they lie in memory, the outermost first."""
    return sorted(range(len(view.size)), key=lambda dim: (-view.stride[dim], -view.size[dim], dim))


def _in_line(tensor: TensorId, dtype: torch.dtype, size: tuple[int, ...]) -> View:
    """Return elements side by side."""
    stride = tuple(prod(size[dim + 1 :]) for dim in range(len(size)))
    return View(tensor=tensor, dtype=dtype, size=size, stride=stride, offset=0)
