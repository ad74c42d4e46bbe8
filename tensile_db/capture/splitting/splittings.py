"""Marks each op of a captured step with the ways in which it can be split.

The batch is followed from the inputs through the step: which dimension of which storage it is.  A wrong guess
would cost a chance, never a result: every rule is right by itself for whatever dimension it is asked about.

Source: TSPLIT section V-A (sTensor configuration: dimension and number of parts).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import gcd

from torch._ops import OpOverload

from tensile_db.capture.builder import views
from tensile_db.capture.operators import written_arguments
from tensile_db.capture.splitting.split_dims import Dims
from tensile_db.capture.splitting.split_rules import batch_dims, channel_dims
from tensile_db.capture.step import Call, CapturedStep, View
from tensile_db.graph import Axis, Cut, Op, Phase, Role, Splitting, StepGraph, TensorId


def with_splittings(step: CapturedStep) -> CapturedStep:
    """Return the step with every op's splittings."""
    marked = tuple(_Marking(step).ops())
    return replace(step, graph=StepGraph(tensors=step.graph.tensors, ops=marked))


def dims_of(call: Call, splitting: Splitting) -> Dims:
    """Return the dimensions along which a call is cut, given how its op is."""
    if splitting.axis is Axis.CHANNEL:
        dims = channel_dims(call)
    else:
        cuts = dict(splitting.cuts)
        given = views((call.args, call.kwargs))
        dims = batch_dims(call, [dim_along(view, cuts.get(view.tensor)) for view in given])
    assert dims is not None, "an op that is split can be"
    return dims


def dim_along(view: View, cut: Cut | None) -> int | None:
    """Return the dimension of a view that runs along a whole cut of its storage, or None."""
    if cut is None:
        return None
    whole = cut.extent * cut.inner
    found = [
        dim
        for dim, (size, stride) in enumerate(zip(view.size, view.stride, strict=True))
        if size > 1 and 0 < stride <= cut.inner < stride * size == whole and cut.inner % stride == 0
    ]
    return found[0] if len(found) == 1 else None


def part_of(view: View, dim: int, cut: Cut, begin: int, end: int, *, compact: bool) -> View | None:
    """Return the part [begin, end) of a view; None where it has none by itself.

    compact: onto a storage that holds the part alone; else a window onto the whole storage.
    """
    whole = cut.extent * cut.inner
    size = list(view.size)
    stride = list(view.stride)
    if dim_along(view, cut) != dim or view.offset % whole >= cut.inner:
        return None
    size[dim] = size[dim] * (end - begin) // cut.extent
    offset = view.offset + begin * cut.inner
    if compact:
        for other, (count, step) in enumerate(zip(view.size, view.stride, strict=True)):
            if step >= whole and count > 1 and step % whole:
                return None
            if step >= whole:
                stride[other] = step // cut.extent * (end - begin)
        offset = view.offset // whole * (end - begin) * cut.inner + view.offset % whole
    return replace(view, size=tuple(size), stride=tuple(stride), offset=offset)


class _Marking:
    def __init__(self, step: CapturedStep) -> None:
        self._step = step
        self._rows = step.inputs[0].size[0] if step.inputs and step.inputs[0].size else 0
        #: How the batch lies in storages.
        self._batch: dict[TensorId, Cut] = {}
        for view in step.inputs:
            self._follow(view, 0)

    def ops(self) -> Iterator[Op]:
        """Yield the ops, marked."""
        for op, call in zip(self._step.graph.ops, self._step.calls, strict=True):
            if op.phase is Phase.OPTIMIZER or call.function is None:
                yield op
                continue
            given = list(views((call.args, call.kwargs)))
            along = [dim_along(view, self._batch.get(view.tensor)) for view in given]
            by_batch = batch_dims(call, along) if self._rows > 1 else None
            found = [
                self._splitting(op, call, Axis.BATCH, by_batch, self._rows),
                self._splitting(op, call, Axis.CHANNEL, channel_dims(call), None),
            ]
            self._follow_results(call, by_batch)
            yield replace(op, splittings=tuple(splitting for splitting in found if splitting is not None))

    def _follow_results(self, call: Call, dims: Dims | None) -> None:
        for place, view in enumerate(call.outputs):
            if view is None or self._step.graph.tensors[view.tensor].role is Role.GRADIENT:
                continue
            dim = None if dims is None else dims.results[place]
            if dim is None and view.size and view.size[0] == self._rows:
                dim = 0
            if dim is not None and (dims is None or place not in dims.sums):
                self._follow(view, dim)

    def _follow(self, view: View, dim: int) -> None:
        cut = self._cut(view, dim, self._rows)
        if cut is not None:
            self._batch[view.tensor] = cut

    def _cut(self, view: View, dim: int, extent: int) -> Cut | None:
        """Return how a storage is cut along a dimension of a view of it, or None where it cannot be."""
        if dim >= len(view.size) or extent < 2 or view.size[dim] % extent or view.stride[dim] == 0:
            return None
        inner = view.stride[dim] * (view.size[dim] // extent)
        count = self._step.graph.tensors[view.tensor].nbytes // view.dtype.itemsize
        if count == 0 or count % (extent * inner):
            return None
        return Cut(outer=count // (extent * inner), extent=extent, inner=inner)

    def _splitting(
        self, op: Op, call: Call, axis: Axis, dims: Dims | None, extent: int | None
    ) -> Splitting | None:
        if dims is None:
            return None
        given = list(views((call.args, call.kwargs)))
        pairs = [*zip(given, dims.args, strict=True)]
        pairs += [
            (view, dim) for view, dim in zip(call.outputs, dims.results, strict=True) if view is not None
        ]
        first = next(((view, dim) for view, dim in pairs if dim is not None), None)
        if first is None:
            return None
        view, dim = first
        assert dim is not None
        if extent is None:
            extent = view.size[dim]
        cuts = self._cuts(pairs, extent)
        if cuts is None or not cuts or extent < 2:
            return None
        sums = _tensors(call, dims.sums)
        once = _tensors(call, dims.once)
        whole = {tensor for tensor in op.writes if tensor not in cuts and tensor not in {*sums, *once}}
        assert isinstance(call.function, OpOverload)
        updated = {view.tensor for view in views(written_arguments(call.function, call.args, call.kwargs))}
        if whole or updated - set(cuts):
            return None
        per_element = view.size[dim] // extent
        unit = dims.multiple // gcd(dims.multiple, per_element)
        least = -(-dims.least // per_element)
        unit *= max(1, -(-least // unit))
        if extent < 2 * unit:
            return None
        return Splitting(
            axis=axis,
            extent=extent,
            unit=unit,
            cuts=tuple(sorted(cuts.items())),
            sums=sums,
            once=once,
            in_order=dims.in_order,
        )

    def _cuts(self, pairs: Sequence[tuple[View, int | None]], extent: int) -> Mapping[TensorId, Cut] | None:
        """Return the cut of each tensor that a part has a part of; None where they are at odds."""
        cuts: dict[TensorId, Cut] = {}
        whole: set[TensorId] = set()
        for view, dim in pairs:
            if dim is None or view.stride[dim] == 0:
                whole.add(view.tensor)
                continue
            cut = self._cut(view, dim, extent)
            if cut is None or cuts.setdefault(view.tensor, cut) != cut:
                return None
            if part_of(view, dim, cut, 0, 1, compact=True) is None:
                return None
        return None if whole & set(cuts) else cuts


def _tensors(call: Call, places: frozenset[int]) -> tuple[TensorId, ...]:
    made = [call.outputs[place] for place in sorted(places)]
    return tuple(sorted(view.tensor for view in made if view is not None))
