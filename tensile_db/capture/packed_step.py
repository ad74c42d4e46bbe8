"""A captured step with tensors kept as bits: the calls that go with a packed graph.

Source: ours; Jain et al., Gist (ISCA 2018), section 3.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from tensile_db.capture.signs import is_channels_last
from tensile_db.capture.split_step import split_step
from tensile_db.capture.step import Call, CapturedStep, View
from tensile_db.graph import OpId, TensorId
from tensile_db.kernels.signs import MAX_POOL2D_BACKWARD_OF_SHAPE, PACK_SIGNS, THRESHOLD_BACKWARD_OF_SIGNS
from tensile_db.scheduler.packing.packed_graph import PackedGraph, known_packed_graph
from tensile_db.scheduler.plan import Rewriting

aten = torch.ops.aten


def planned_step(step: CapturedStep, rewriting: Rewriting, device: torch.device) -> CapturedStep:
    """Return the step as a plan has it; its graph is the plan's."""
    return split_step(packed_step(step, rewriting.packed), rewriting.splits, device)


def packed_step(step: CapturedStep, packed: tuple[TensorId, ...]) -> CapturedStep:
    """Return the step with tensors packed; its graph is what `known_packed_graph` makes of the step's."""
    if not packed:
        return step
    made = known_packed_graph(step.graph, packed)
    calls = tuple(_calls(step, made))
    return replace(step, graph=made.graph, calls=calls)


def _calls(step: CapturedStep, made: PackedGraph) -> list[Call]:
    of_bits = {bits: whole for whole, bits in made.bits.items()}
    calls: list[Call] = []
    for op, made_from in zip(made.graph.ops, made.ops, strict=True):
        if made_from is None:
            (bits,) = op.writes
            calls.append(_pack(op.id, step, of_bits[bits], _bits(made, bits)))
            continue
        call = step.calls[made_from]
        if op.target != step.graph.ops[made_from].target:
            call = _RUN_WITH_BITS[call.function](call, made)
        assert call.function is None or str(call.function) == op.target, f"op {op.id} is {op.target}"
        calls.append(replace(call, op=op.id))
    return calls


def _bits(made: PackedGraph, bits: TensorId) -> View:
    size = made.graph.tensors[bits].nbytes
    return View(tensor=bits, dtype=torch.uint8, size=(size,), stride=(1,), offset=0)


def _pack(op: OpId, step: CapturedStep, tensor: TensorId, bits: View) -> Call:
    whole = step.graph.tensors[tensor]
    dtype = getattr(torch, whole.dtype)
    flat = View(tensor=tensor, dtype=dtype, size=(whole.nbytes // dtype.itemsize,), stride=(1,), offset=0)
    return Call(
        op=op,
        function=PACK_SIGNS,
        args=(flat,),
        kwargs={},
        outputs=(bits,),
        draws_from_default_generator=False,
        recompute_args=None,
    )


def _threshold_backward(call: Call, made: PackedGraph) -> Call:
    grad, x, _ = call.args
    args = (grad, _bits(made, made.bits[x.tensor]))
    return replace(call, function=THRESHOLD_BACKWARD_OF_SIGNS, args=args)


def _max_pool2d_backward(call: Call, made: PackedGraph) -> Call:
    grad, images, kernel_size, stride, padding, dilation, ceil_mode, indices = call.args
    args = (
        grad,
        list(images.size[2:]),
        is_channels_last(images),
        kernel_size,
        stride,
        padding,
        dilation,
        ceil_mode,
        indices,
    )
    return replace(call, function=MAX_POOL2D_BACKWARD_OF_SHAPE, args=args)


_RUN_WITH_BITS: Mapping[Any, Callable[[Call, PackedGraph], Call]] = {
    aten.threshold_backward.default: _threshold_backward,
    aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward,
}
