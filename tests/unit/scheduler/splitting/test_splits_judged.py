"""Splits are judged by the ops that they change: what is left out of the split graph is as it was.

Of parts alike one is judged for all.
"""

import functools
from collections import Counter

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Axis
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.plan import Split
from tensile_db.scheduler.policies import in_parts, tsplit
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.splitting.choice import SplitChoice, Splitter, needs_nbytes
from tensile_db.scheduler.splitting.latencies import part_latencies_ns
from tensile_db.scheduler.splitting.pieces import Execute
from tensile_db.scheduler.splitting.split_graph import changed_ops, split_graph
from tests.examples import examples
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

DEVICE = machine("sim:a6000")


@functools.cache
def graph_of(network):
    return capture_once(training_of(network, "momentum", 8))[0].graph


@st.composite
def some_splits(draw, graph):
    """Splits of neighbours in both axes, in blocks or not."""
    begin = draw(st.integers(0, len(graph.ops) - 1))
    chosen = {}
    for op in graph.ops[begin : begin + draw(st.integers(1, 40))]:
        if op.splittings and draw(st.integers(0, 3)):
            splitting = draw(st.sampled_from(op.splittings))
            chosen.setdefault((splitting.axis, splitting.extent), []).append(op.id)
    blocks = draw(st.sampled_from([set(), {Axis.BATCH}, set(Axis)]))
    return tuple(
        Split(axis=axis, parts=draw(st.integers(2, 8)), ops=tuple(ops), blocks=axis in blocks)
        for (axis, _), ops in sorted(chosen.items())
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hurried", "careful", "want"),
    [
        # What is faster with care is taken, though another was in a hurry.
        ((3.0, 2.0, 2.2), (None, 1.9, 1.8), 2),
        ((3.0, 2.0, 2.2), (None, 1.8, 1.9), 1),
        # Far behind, and not looked at again.
        ((2.5, 2.1, 2.0), (None, 1.9, 1.8), 2),
        # Whole ops, third and not far behind: care may make more of them.
        ((2.3, 2.1, 2.0), (1.7, 1.9, 1.8), 0),
        ((2.5, 2.0, 2.5), (None, 9.9, None), 1),
        # Good enough: nothing more is tried.
        ((1.005, 1.0, 1.0), (None, None, None), 0),
    ],
)
def test_the_splits_are_those_of_the_plan_that_is_fastest_with_care(monkeypatch, hurried, careful, want):
    graph = graph_of("resnet")
    sets = [(), *((Split(axis=Axis.BATCH, parts=parts, ops=()),) for parts in (2, 4))]
    request = JobRequest(job_id=1, graph=graph, latencies_ns=[1000] * len(graph.ops))

    def judged(asked, splits, *_):
        times = (hurried if asked.hurried else careful)[sets.index(splits)]
        assert times is not None, "not to be asked"
        return int(times * 1000 * len(graph.ops))

    monkeypatch.setattr(in_parts, "_judged_ns", judged)
    monkeypatch.setattr(in_parts, "_sets_of_splits", lambda *_, **__: iter(sets))
    assert in_parts.fastest_splits(request, DEVICE, 1, 1) == sets[want]


@pytest.mark.parametrize(("careful", "want"), [((1.9, 1.8, 1.7), 2), ((1.9, 1.8, 2.0), 1)])
def test_the_likeliest_splits_that_keep_bits_are_planned_with_care_whatever_promises_more(
    monkeypatch, careful, want
):
    graph = graph_of("resnet")
    sets = [(Split(axis=Axis.BATCH, parts=parts, ops=()),) for parts in (2, 3, 4, 5)]
    request = JobRequest(job_id=1, graph=graph, latencies_ns=[1000] * len(graph.ops))

    def judged(asked, splits, *_):
        times = (2.0, 2.1, 2.2, 2.3) if asked.hurried else (*careful, None)
        assert times[sets.index(splits)] is not None, "not to be asked"
        return int(times[sets.index(splits)] * 1000 * len(graph.ops))

    monkeypatch.setattr(in_parts, "_judged_ns", judged)
    monkeypatch.setattr(in_parts, "_sets_of_splits", lambda *_, **__: iter(sets))
    monkeypatch.setattr(in_parts, "keep_bits", lambda _, splits: splits in sets[2:])
    assert in_parts.fastest_splits(request, DEVICE, 1, 1) == sets[want]


@pytest.mark.parametrize("saved_nbytes", [-1, 0, 1])
def test_tsplit_splits_an_op_only_where_that_saves_something(saved_nbytes):
    graph = graph_of("resnet")
    latencies_ns = predict_latencies_ns(graph, DEVICE)
    request = JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, policy="tsplit")
    planning = tsplit._Planning(request, (), Splitter(request, DEVICE), DEVICE, 1 << 40, 1)
    op = planning.residency.table.order[planning.residency.peak_position]
    # As if it had been found for a part of the op that needs another number of bytes.
    choice = SplitChoice(splits=(), needed_nbytes=needs_nbytes(graph)[op] - saved_nbytes, added_ns=0)
    planning._found[op] = choice
    assert planning._split_below(1.0) == (choice if saved_nbytes > 0 else None)


def told(tensors, op):
    """Return what of an op does not depend on how tensors are numbered."""
    touched = sorted((tensors[t].nbytes, tensors[t].shape, t in op.writes) for t in {*op.reads, *op.writes})
    return op.target, op.phase, tuple(touched), op.workspace_nbytes, op.flops, op.moved_nbytes


@pytest.mark.slow
@pytest.mark.parametrize(
    "network", ["vgg with dropout", "resnet", "gcn", pytest.param("transformer", marks=pytest.mark.slow)]
)
@given(st.data())
@examples(40)
def test_the_ops_that_splits_change_are_those_of_the_split_graph(network, data):
    graph = graph_of(network)
    splits = data.draw(some_splits(graph))
    also = data.draw(st.sets(st.sampled_from(graph.ops).map(lambda op: op.id), max_size=3))
    whole, some = split_graph(graph, splits), changed_ops(graph, splits, also)

    def is_left_out(piece):
        return (
            isinstance(piece, Execute)
            and piece.axis is None
            and piece.op not in also
            and all(tensor in whole.whole for tensor, _ in piece.places)
        )

    pairs = zip(whole.ops, whole.pieces, strict=True)
    kept = [(op, piece) for op, piece in pairs if not is_left_out(piece)]
    event(f"{len(some.ops) < len(whole.ops) / 2}")
    want = Counter((told(whole.graph.tensors, op), type(piece)) for op, piece in kept)
    got = Counter()
    for op, piece, count in zip(some.ops, some.pieces, some.counts, strict=True):
        got[told(some.tensors, op), type(piece)] += count
    assert got == want
    event(f"one for {max(some.counts, default=0)}")
    # What the rest takes and needs is what it takes and needs of the whole graph.
    latencies_ns = predict_latencies_ns(graph, DEVICE)
    rest = [piece.op for piece in whole.pieces if is_left_out(piece)]
    rest_ns = sum(latencies_ns[op] for op in rest)
    parts_ns = part_latencies_ns(graph, some, latencies_ns, DEVICE)
    some_ns = sum(ns * count for ns, count in zip(parts_ns, some.counts, strict=True))
    assert rest_ns + some_ns == sum(part_latencies_ns(graph, whole, latencies_ns, DEVICE))
    needs = zip(whole.pieces, needs_nbytes(whole.graph), strict=True)
    whole_needs = needs_nbytes(graph)
    assert [needed for piece, needed in needs if is_left_out(piece)] == [whole_needs[op] for op in rest]
