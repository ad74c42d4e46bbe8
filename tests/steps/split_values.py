"""The values of all tensors of a captured step after one run of its calls, nothing freed: whole and split."""

import torch

from tensile_db.capture.step import RandomSource, Scalar, View
from tensile_db.scheduler.plan import Split
from tensile_db.scheduler.splitting.split_graph import split_graph
from tensile_db.scheduler.splitting.ways import find_splitting
from tests.steps.bitwise_runs import SEED


def split_of_everything(graph, axis, parts, *, blocks=False, keeps_bits=False):
    """Return a split of all ops that can be, for each extent along the axis; or of those that keep bits."""
    by_extent = {}
    for op in graph.ops:
        splitting = find_splitting(op, axis)
        if splitting is not None and (splitting.keeps_bits or not keeps_bits):
            by_extent.setdefault(splitting.extent, []).append(op.id)
    return [
        Split(axis=axis, parts=parts, ops=tuple(ops), blocks=blocks) for _, ops in sorted(by_extent.items())
    ]


def run_all(step, state, batch, seen=lambda call, args: None):
    """Return the storages by tensor id; seen: told of each call's arguments."""
    storages = {}
    generator = torch.Generator().manual_seed(SEED)

    def of(view):
        return torch.empty(0, dtype=view.dtype).set_(
            storages[view.tensor], view.offset, view.size, view.stride
        )

    def filled(value):
        match value:
            case View():
                return of(value)
            case RandomSource():
                return generator
            case Scalar(name=name):
                return step.scalars(1)[name]
            case list() | tuple():
                return type(value)(filled(item) for item in value)
            case _:
                return value

    def empty(view):
        storages[view.tensor] = torch.UntypedStorage(step.graph.tensors[view.tensor].nbytes)
        return of(view)

    for name, view in step.state.items():
        empty(view).copy_(state[name])
    for call in step.calls:
        if call.function is None:
            for view, value in zip(step.inputs if call.op == 0 else (), batch, strict=False):
                empty(view).copy_(value)
            continue
        args = filled(call.args)
        seen(call, args)
        result = call.function(*args, **{k: filled(v) for k, v in call.kwargs.items()})
        results = result if isinstance(result, list | tuple) else [result]
        for view, value in zip(call.outputs, results, strict=True):
            if view is not None:
                empty(view).copy_(value)
    return storages


def whole_values(step, splits, storages):
    """Return the bytes of each of the whole step's tensors, its parts put together."""
    split = split_graph(step.graph, splits)
    values = {tensor: bytes_of(storages[own]) for tensor, own in split.whole.items() if own in storages}
    pieces = {}
    for op, piece in zip(split.graph.ops, split.pieces, strict=True):
        for tensor, place in getattr(piece, "places", ()):
            # Copies of parts are made by no op of the whole graph.
            is_part = tensor not in {*split.whole, *split.blocks} and place is not None
            if is_part and place.tensor in op.writes:
                pieces.setdefault(tensor, {})[place.range.begin] = place
    pieces = {tensor: list(places.values()) for tensor, places in pieces.items()}
    for tensor, places in {**pieces, **split.blocks}.items():
        whole = step.graph.tensors[tensor]
        dtype = getattr(torch, whole.dtype)
        flat = torch.zeros(whole.nbytes // dtype.itemsize, dtype=dtype)
        for place in places:
            size, window = _window(flat, place)
            window.copy_(torch.empty(0, dtype=dtype).set_(storages[place.tensor], 0, size))
        values[tensor] = bytes_of(flat.untyped_storage())
    return values


def _window(flat, place):
    """Return a part's shape, and the window onto the whole tensor that it belongs into."""
    cut, begin, end = place.range.cut, place.range.begin, place.range.end
    window = flat.view(cut.outer, cut.extent, cut.inner)[:, begin:end]
    if place.within is not None:
        inner = place.within.cut
        rows = window.reshape(cut.outer * (end - begin), cut.inner)
        assert rows.data_ptr() == window.data_ptr()
        rows = rows.view(len(rows), -1, inner.extent, inner.inner)
        window = rows[:, :, place.within.begin : place.within.end]
    return window.shape, window


def bytes_of(storage):
    """Return a storage's bytes."""
    return bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())


def differing_tensors(step, splits, whole, parts):
    """Return the tensors whose bytes differ between a run of the whole step and one of the split step."""
    values = whole_values(step, splits, parts)
    assert set(values) == set(whole)
    return [tensor for tensor in sorted(values) if values[tensor] != bytes_of(whole[tensor])]


def summed_tensors(graph, splits):
    """Return the tensors that are sums of what parts make."""
    number = {op: split for split in splits for op in split.ops}
    ops = [graph.ops[op] for op in sorted(number)]
    return {t for op in ops for t in find_splitting(op, number[op.id].axis).sums}


def made_of(graph, tensors):
    """Return these tensors and all that is made of them."""
    touched = set(tensors)
    for op in graph.ops:
        if touched.intersection(op.reads):
            touched.update(op.writes)
    return touched


#: Half the distance of 1 to the next float32.
UNIT_ROUNDOFF = 2.0**-24


class Tolerances:
    """How far sums in another order may be from these tensors' values, and what is added to them in place."""

    def __init__(self, tensors):
        self._tensors = tensors
        #: By tensor id, element by element.
        self.of = {}

    def seen(self, call, args):
        """Follow one call of the whole step; args: what it is called with."""
        for place, view in enumerate(call.outputs):
            if view is not None and view.tensor in self._tensors:
                self.of[view.tensor] = tolerance(call, args, place)
        if call.function is torch.ops.aten.add_.Tensor and call.args[0].tensor in self.of:
            # As of a weight that is used twice. Each of two such sums is rounded.
            own, (value, more) = call.args[0].tensor, args
            assert isinstance(more, torch.Tensor)
            other = self.of.get(call.args[1].tensor, 0)
            before = self.of[own] + other
            self.of[own] = before + UNIT_ROUNDOFF * (2 * (value + more).abs() + before) * (1 + UNIT_ROUNDOFF)


def tolerance(call, args, place):
    """Return how far a sum in another order may be from this call's result at `place`, element by element.

    Two sums of the same n products differ by no more than 2 (n + 1) u / (1 - (n + 1) u) times the sum of the
    products' magnitudes: each is at most half of that from the exact one (Higham, Accuracy and Stability of
    Numerical Algorithms, section 3.1; one rounding more for the product).
    """
    aten = torch.ops.aten
    if call.function is aten.convolution_backward.default:
        gradient, features, *rest = args
        count = gradient.numel() // gradient.shape[1]
        magnitude = call.function(gradient.abs(), features.abs(), *rest)[place]
    elif call.function is aten.mm.default:
        count = args[0].shape[1]
        magnitude = args[0].abs() @ args[1].abs()
    elif call.function is aten.sum.dim_IntList:
        count = args[0].shape[0]
        magnitude = args[0].abs().sum(*args[1:])
    else:
        assert call.function is aten.native_layer_norm_backward.default
        gradient, values, _, mean, deviation = args[:5]
        normal = (values - mean) * deviation if place == 1 else torch.ones_like(values)
        count = gradient.numel() // gradient.shape[-1]
        magnitude = (gradient * normal).abs().flatten(0, -2).sum(0)
        # The kernel normalizes in other steps: three roundings more in each product.
        count += 3
    share = (count + 1) * UNIT_ROUNDOFF
    return 2 * share / (1 - share) * magnitude
