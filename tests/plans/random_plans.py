"""Random plans that no planner made: odd orders, delays and triggers, many of them wrong."""

from itertools import pairwise

from hypothesis import strategies as st

from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan_json import plan_to_json
from tests.graphs.random_graphs import devices, random_jobs

_SOME_DELAY = st.just(0) | st.integers(1, 50) | st.integers(1, 3000)


@st.composite
def foreign_documents(draw, max_layers: int = 3):
    """Draw a plan's document, without predictions; copies are listed in the order of their triggers."""
    job, device = draw(random_jobs("vanilla", max_layers)), draw(devices(costly_copies=True))
    (made,) = plan_jobs([job], device)
    document = plan_to_json(job.graph, job.latencies_ns, device, made.plan, made.prediction, made.timeline)
    del document["predicted"], document["timeline"]
    order = draw(_orders(job.graph.ops))
    document["plan"] |= {"order": order, "events": draw(_events(job.graph, order))}
    return document


@st.composite
def _orders(draw, ops):
    """Draw an order in which every op runs after those that it shares a written tensor with."""
    left, order = list(ops), []
    while left:
        ready = [
            op
            for place, op in enumerate(left)
            if not any(
                {*before.writes} & {*op.reads, *op.writes} or {*before.reads} & {*op.writes}
                for before in left[:place]
            )
        ]
        op = draw(st.just(ready[0]) | st.sampled_from(ready))
        left.remove(op)
        order.append(op.id)
    return order


@st.composite
def _events(draw, graph, order):
    """Draw what is done to each tensor: it stays, is away between two uses, or is made again."""
    placed = []
    of_ten = draw(st.sampled_from([1, 2, 4]))
    for tensor in graph.tensors:
        uses = [
            place
            for place, op in enumerate(order)
            if tensor.id in graph.ops[op].reads or tensor.id in graph.ops[op].writes
        ]
        if not uses:
            continue
        gaps = [(last, following) for last, following in pairwise(uses) if following > last + 1]
        for last, following in gaps:
            if draw(st.integers(1, 10)) <= of_ten:
                writers = [op for op in order[: last + 1] if tensor.id in graph.ops[op].writes]
                again = writers and not tensor.persistent and draw(st.booleans())
                placed += draw(
                    _made_again(tensor.id, order, last, following, writers)
                    if again
                    else _away(tensor.id, order, last, following)
                )
        if not tensor.persistent:
            placed.append((uses[-1], {"kind": "release", "tensor": tensor.id, "after_op": order[uses[-1]]}))
        elif draw(st.integers(1, 10)) <= of_ten:
            placed += draw(_away(tensor.id, order, uses[-1], uses[0], wraps=True))
    # At one place swap-outs come first.
    return [event for _, event in sorted(placed, key=lambda each: (each[0], each[1]["kind"] != "swap_out"))]


@st.composite
def _away(draw, tensor, order, last, following, *, wraps=False):
    """Draw events that take a tensor away between its uses, and bring it back; with each its place."""
    left = draw(st.integers(last, len(order) - 1 if wraps else following - 1))
    back = draw(st.integers(-1 if wraps else left, following - 1))
    placed = [
        (place, {"kind": kind, "tensor": tensor, "trigger_op": order[place] if place >= 0 else None})
        for kind, place in (("swap_out", left), ("swap_in", back))
    ]
    for _, event in placed:
        event["delta_ns"] = draw(_SOME_DELAY)
    if draw(st.booleans()):
        awaited = draw(st.integers(left + 1, len(order) if wraps else following))
        before = order[awaited] if awaited < len(order) else None
        placed.append((awaited, {"kind": "wait", "tensor": tensor, "before_op": before}))
    return placed


@st.composite
def _made_again(draw, tensor, order, last, following, writers):
    """Draw events that release a tensor, and make it again for its next use."""
    ops = draw(st.sampled_from([writers, writers[-1:]]))
    return [
        (last, {"kind": "release", "tensor": tensor, "after_op": order[last]}),
        (following, {"kind": "recompute", "tensor": tensor, "before_op": order[following], "ops": ops}),
    ]
