"""Along which dimensions a call is cut, argument by argument, and elementwise calls.

Source: TSPLIT sections III-A and V-A.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod

import torch
from torch._ops import OpOverload

from tensile_db.capture.builder import views
from tensile_db.capture.step import Call, View

aten = torch.ops.aten

#: Elements of an elementwise op's part: the last ones of what a vectorized loop runs over are computed by
#: another formula where the op is more than arithmetic, so that no part may have an odd end.
VECTOR_UNIT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Dims:
    """Which dimension of each argument and result a part has its range of."""

    #: For each View among the arguments, in order; None: it is needed whole.
    args: tuple[int | None, ...]
    #: For each result; None: it is whole.
    results: tuple[int | None, ...]
    #: Results that are sums of what the parts make, and results that the first part makes, by place.
    sums: frozenset[int] = frozenset()
    once: frozenset[int] = frozenset()
    #: Along that dimension of the first argument that has one, a part has at least so many elements ...
    least: int = 1
    #: ... and a multiple of so many.
    multiple: int = 1
    #: Whether no kernel takes another order to sum up for a part than it takes for the whole.
    in_order: bool = True


#: Given the call and, for each View among its arguments, the dimension that the batch is known to be in.
Rule = Callable[[Call, Sequence[int | None]], Dims | None]


def view_at(call: Call, place: int) -> View | None:
    """Return the argument at a place if it is a View."""
    value = call.args[place] if place < len(call.args) else None
    return value if isinstance(value, View) else None


def channel_of(view: View) -> int:
    """Return the channels' dimension of images, or the features' of rows: the last one."""
    return 1 if len(view.size) == 4 else len(view.size) - 1


def same_dim(call: Call, dim: int) -> tuple[int | None, ...]:
    """Return `dim` for every result that is made."""
    return tuple(None if output is None else dim for output in call.outputs)


def made_by(call: Call) -> View | None:
    """Return what an elementwise call makes or updates; None where it is no View."""
    if len(call.outputs) != 1:
        return None
    if call.outputs[0] is not None:
        return call.outputs[0]
    return view_at(call, 0)


def is_elementwise(call: Call) -> bool:
    """Tell whether each element of the result depends on one of each argument, and on no random number."""
    function = call.function
    if function is None or call.draws_from_default_generator:
        return False
    if function in _ARITHMETIC:
        return True
    assert isinstance(function, OpOverload), "calls are of ATen's operators"
    return torch.Tag.pointwise in function.tags and torch.Tag.nondeterministic_seeded not in function.tags


def is_scaled(call: Call) -> bool:
    """Tell whether a sum has a factor: a product and a sum are rounded once in a loop, twice at its end."""
    return bool(call.kwargs.get("alpha", 1) != 1)


def elementwise(call: Call, known: Sequence[int | None]) -> Dims | None:
    """Split an elementwise call; known: a dimension of each View argument, None where that is not known."""
    given, made = list(views((call.args, call.kwargs))), made_by(call)
    if made is None:
        return None
    rank = len(made.size)
    # From the right, as broadcasting counts.
    places = {
        dim - len(view.size) for view, dim in zip(given, known, strict=True) if dim is not None and view.size
    }
    if len(places) != 1:
        return None
    (place,) = places
    if -place > rank:
        return None
    size = made.size[place]
    args: list[int | None] = []
    for view in given:
        dim = len(view.size) + place
        args.append(dim if dim >= 0 and view.size[dim] == size and size > 1 else None)
    multiple = 1
    if call.function not in _ARITHMETIC or is_scaled(call):
        # What lies side by side in a part, if the value is dense.
        inner = prod(made.size) // size
        multiple = VECTOR_UNIT // gcd(VECTOR_UNIT, inner)
    result = None if call.outputs[0] is None else rank + place
    return Dims(args=tuple(args), results=(result,), multiple=multiple)


#: Exact whatever the length of a loop is: additions, products, comparisons, copies, roundings to a dtype.
_ARITHMETIC = frozenset(
    {
        aten.add.Tensor,
        aten.add_.Tensor,
        aten.sub.Tensor,
        aten.sub_.Tensor,
        aten.mul.Tensor,
        aten.mul_.Tensor,
        aten.mul.Scalar,
        aten.div.Tensor,
        aten.div_.Tensor,
        aten.div.Scalar,
        aten.div_.Scalar,
        aten.neg.default,
        aten.relu.default,
        aten.relu_.default,
        aten.threshold_backward.default,
        aten.hardtanh.default,
        aten.hardtanh_.default,
        aten.hardtanh_backward.default,
        aten.copy_.default,
        aten._to_copy.default,  # noqa: SLF001 - the cast has no other name
    }
)


def adds_up_in_order(call: Call) -> bool:
    """Return whether a product's or a convolution's kernels add up in float32's order, whatever the part.

    In 16 bits oneDNN adds up in blocks that depend on a part's size.
    """
    return all(view.dtype is torch.float32 for view in views(call.args))


def pixels_made(call: Call) -> int:
    """Return how many pixels a convolution makes of each image, or those of which its backward op is."""
    # Backward, the first argument is laid out like the convolution's result.
    result = call.outputs[0] if call.function is torch.ops.aten.convolution.default else view_at(call, 0)
    return 1 if result is None else prod(result.size[2:])
