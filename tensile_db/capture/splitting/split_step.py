"""A captured step whose ops are run in parts: the calls that go with a split graph.

Each part's call is the whole one with its arguments narrowed; beside these stand the copies between whole
tensors and their parts, and the sums of what parts make.

Source: TSPLIT section V-A (sTensor graph generation).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from tensile_db.capture.builder import views
from tensile_db.capture.splitting.split_dims import Dims
from tensile_db.capture.splitting.split_rules import part_constants
from tensile_db.capture.splitting.splittings import dims_of, part_of
from tensile_db.capture.step import Call, CapturedStep, View
from tensile_db.graph import OpId, Splitting, TensorId
from tensile_db.scheduler.plan import Split
from tensile_db.scheduler.splitting.pieces import Accumulate, Allocate, Copy, Execute, Place, Range
from tensile_db.scheduler.splitting.split_graph import split_graph
from tensile_db.scheduler.splitting.ways import find_splitting

aten = torch.ops.aten


def split_step(step: CapturedStep, splits: Sequence[Split], device: torch.device) -> CapturedStep:
    """Return the step with the splits carried out; its graph is what `split_graph` makes of the step's."""
    if not splits:
        return step
    return _Splitting(step, splits, device).run()


class _Splitting:
    def __init__(self, step: CapturedStep, splits: Sequence[Split], device: torch.device) -> None:
        self._step = step
        self._split = split_graph(step.graph, splits)
        self._device = device

    def run(self) -> CapturedStep:
        calls = []
        for number, piece in enumerate(self._split.pieces):
            op = OpId(number)
            match piece:
                case Execute():
                    calls.append(self._execute(op, piece))
                case Allocate(tensor=tensor, place=place):
                    calls.append(self._allocate(op, tensor, place))
                case Copy():
                    calls.append(self._copy(op, piece))
                case Accumulate(tensor=tensor, summand=summand, total=total):
                    made = self._view_made(tensor)
                    args = (
                        replace(made, tensor=total.tensor),
                        replace(made, tensor=summand.tensor),
                    )
                    calls.append(_call(op, aten.add_.Tensor, args, outputs=(None,)))
        return replace(
            self._step,
            graph=self._split.graph,
            calls=tuple(calls),
            inputs=tuple(self._whole(view) for view in self._step.inputs),
            outputs={name: self._whole(view) for name, view in self._step.outputs.items()},
            state={name: self._whole(view) for name, view in self._step.state.items()},
        )

    def _whole(self, view: View) -> View:
        return replace(view, tensor=self._split.whole[view.tensor])

    def _view_made(self, tensor: TensorId) -> View:
        """Return the view of a tensor by the call that makes it."""
        for call in self._step.calls:
            for view in call.outputs:
                if view is not None and view.tensor == tensor:
                    return view
        raise AssertionError(f"no call makes tensor {tensor}")

    def _execute(self, op: OpId, piece: Execute) -> Call:
        call = self._step.calls[piece.op]
        places = dict(piece.places)
        if piece.axis is None:
            return replace(
                call,
                op=op,
                args=_replaced(call.args, lambda view: _moved(view, places)),
                kwargs=_replaced(dict(call.kwargs), lambda view: _moved(view, places)),
                outputs=tuple(None if view is None else _moved(view, places) for view in call.outputs),
                recompute_args=None
                if call.recompute_args is None
                else _replaced(call.recompute_args, lambda view: _moved(view, places)),
            )
        splitting = find_splitting(self._step.graph.ops[piece.op], piece.axis)
        assert splitting is not None
        return self._part(op, call, piece, splitting)

    def _part(self, op: OpId, call: Call, piece: Execute, splitting: Splitting) -> Call:
        places = dict(piece.places)
        dims = dims_of(call, splitting)
        begin, end = next(
            (place.range.begin, place.range.end)
            for place in places.values()
            if place is not None and place.range is not None
        )
        narrowed = {
            (view, dim): _narrowed(view, dim, places[view.tensor], splitting.extent, begin, end)
            for view, dim in zip(views((call.args, call.kwargs)), dims.args, strict=True)
        }
        by_view = {view: part for (view, _), part in narrowed.items()}
        args = part_constants(call, splitting.axis, piece.part, end - begin, splitting.extent)
        return replace(
            call,
            op=op,
            args=_replaced(args, lambda view: by_view[view]),
            kwargs=_replaced(dict(call.kwargs), lambda view: by_view[view]),
            outputs=_outputs(call, dims, places, splitting.extent, begin, end),
            recompute_args=None
            if call.recompute_args is None
            else _replaced(call.recompute_args, lambda view: by_view[view]),
        )

    def _allocate(self, op: OpId, tensor: TensorId, place: Place) -> Call:
        made = self._flat(tensor, place)
        options = {"dtype": made.dtype, "device": self._device}
        return _call(op, aten.empty_strided.default, (list(made.size), [1]), options, outputs=(made,))

    def _copy(self, op: OpId, piece: Copy) -> Call:
        source, target = (
            self._window(piece.tensor, place, piece.ranges) for place in (piece.source, piece.target)
        )
        if piece.makes:
            options = {"memory_format": torch.contiguous_format}
            return _call(op, aten.clone.default, (source,), options, outputs=(target,))
        return _call(op, aten.copy_.default, (target, source), outputs=(None,))

    def _flat(self, tensor: TensorId, place: Place) -> View:
        whole = self._step.graph.tensors[tensor]
        dtype = getattr(torch, whole.dtype)
        return View(
            tensor=place.tensor, dtype=dtype, size=(whole.nbytes // dtype.itemsize,), stride=(1,), offset=0
        )

    def _window(self, tensor: TensorId, place: Place, ranges: Sequence[Range]) -> View:
        """Return ranges of what a place holds: [outer, elements along a cut, what lies within, ...]."""
        held = {}
        if place.compact:
            kept = [own for own in (place.range, place.within) if own is not None]
            held = {own.cut: (own.begin, own.end) for own in kept}
        size: list[int] = []
        stride: list[int] = []
        running, offset, innermost = 1, 0, 1
        for own in reversed(ranges):
            begin, end = held.get(own.cut, (0, own.cut.extent))
            between = own.cut.inner // innermost
            size += [between, own.end - own.begin]
            stride += [running, running * between]
            running *= between
            offset += (own.begin - begin) * running
            running *= end - begin
            innermost = own.cut.inner * own.cut.extent
        return View(
            tensor=place.tensor,
            dtype=getattr(torch, self._step.graph.tensors[tensor].dtype),
            size=(ranges[0].cut.outer, *reversed(size)),
            stride=(running, *reversed(stride)),
            offset=offset,
        )


def _call(
    op: OpId,
    function: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    *,
    outputs: tuple[View | None, ...],
) -> Call:
    return Call(
        op=op,
        function=function,
        args=args,
        kwargs=kwargs or {},
        outputs=outputs,
        draws_from_default_generator=False,
        recompute_args=None,
    )


def _outputs(
    call: Call, dims: Dims, places: Mapping[TensorId, Place | None], extent: int, begin: int, end: int
) -> tuple[View | None, ...]:
    made: list[View | None] = []
    for view, dim in zip(call.outputs, dims.results, strict=True):
        place = None if view is None else places[view.tensor]
        if view is None or place is None:
            made.append(None)
        else:
            made.append(_narrowed(view, dim, place, extent, begin, end))
    return tuple(made)


def _narrowed(view: View, dim: int | None, place: Place | None, extent: int, begin: int, end: int) -> View:
    """Return the part of a view that a part of an op uses, at its place."""
    assert place is not None, "what is dropped is not read"
    moved = replace(view, tensor=place.tensor)
    if dim is None:
        return moved
    if place.range is None:
        # One element stands for all along the dimension.
        size = list(view.size)
        size[dim] = size[dim] * (end - begin) // extent
        return replace(moved, size=tuple(size))
    part = part_of(moved, dim, place.range.cut, begin, end, compact=place.compact)
    assert part is not None, "an op that is split can be"
    return part


def _moved(view: View, places: Mapping[TensorId, Place | None]) -> View:
    place = places[view.tensor]
    assert place is not None
    return replace(view, tensor=place.tensor)


def _replaced(value: Any, of_view: Any) -> Any:
    """Return nested tuples, lists and mappings with every View replaced."""
    if isinstance(value, View):
        return of_view(value)
    if isinstance(value, list | tuple):
        return type(value)(_replaced(item, of_view) for item in value)
    if isinstance(value, Mapping):
        return {name: _replaced(item, of_view) for name, item in value.items()}
    return value
