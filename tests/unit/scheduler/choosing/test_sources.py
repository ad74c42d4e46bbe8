"""Tensors held beyond their last access, since much more is made again from them: by hand, and replayed."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing import beginnings
from tensile_db.scheduler.choosing.sources import find_sources, holds_sources
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import Recompute, Release
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples
from tests.graphs.dense_block import dense_block
from tests.graphs.hand_made import device_of
from tests.graphs.random_graphs import devices, latencies_for
from tests.plans.replayed_plans import plan_and_replay

pytestmark = pytest.mark.usefixtures("little_effort")

LAYERS = 12
#: So slow a link that copies hardly help.
DEVICE = device_of(10**6, 10**8)


def _latencies_of(graph):
    """Return times by which a concatenation is made in less time than the layers before it."""
    nbytes = [tensor.nbytes for tensor in graph.tensors]
    return [sum(nbytes[made] for made in op.writes) // 20 if op.target == "cat" else 300 for op in graph.ops]


def _job(graph, **options):
    return JobRequest(job_id=1, graph=graph, latencies_ns=_latencies_of(graph), **options)


def _within(graph, share):
    return replace(DEVICE, memory_nbytes=int(share * vanilla.peak_nbytes(graph)))


def _sources(graph, near_ns=0, least_nbytes=1):
    residency = Residency(graph, _latencies_of(graph))
    return find_sources(residency, near_ns=near_ns, least_nbytes=least_nbytes)


def test_the_maps_of_a_dense_block_are_held_until_the_first_layer_that_reads_each_is_run_backwards():
    # Two ops of the batch, three a layer and one less, the loss; then the layers, the last one first.  A map
    # that no concatenation reads again after the last one's backward op has begun need not be held.
    first_backward = 2 + 3 * LAYERS - 1 + 1
    want = {layer: first_backward + LAYERS - 1 - layer for layer in range(LAYERS)}
    assert _sources(dense_block(LAYERS)) == want


def test_what_would_hold_much_of_what_it_frees_is_no_source():
    # Four maps for concatenations of one, two, three and four of them.
    assert _sources(dense_block(4)) == {}
    # Five for fifteen.
    assert len(_sources(dense_block(5))) == 5


def test_small_tensors_and_short_gaps_have_no_sources():
    graph = dense_block(LAYERS)
    assert _sources(graph, least_nbytes=10**6) == {}
    assert _sources(graph, near_ns=10**9) == {}


@pytest.mark.slow
def test_a_plan_holds_maps_for_its_concatenations_and_is_faster_for_it(monkeypatch):
    graph = dense_block(LAYERS)
    holding = plan_and_replay(_job(graph), _within(graph, 0.5))
    monkeypatch.setattr(beginnings, "find_sources", lambda *_, **__: {})
    # Of another object nothing is known yet.
    without = plan_and_replay(_job(replace(graph)), _within(graph, 0.5))
    assert holds_sources(holding.plan, graph)
    assert not holds_sources(without.plan, graph)
    again = {
        graph.ops[op].target for made in holding.plan.events if isinstance(made, Recompute) for op in made.ops
    }
    assert "cat" in again
    assert holding.prediction.time_ns < 0.5 * without.prediction.time_ns


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_nothing_is_held_longer_than_a_recomputation_reads_it(share):
    graph = dense_block(LAYERS)
    made = plan_and_replay(_job(graph), _within(graph, share))
    plan, residency = made.plan, Residency(graph, _latencies_of(graph), made.plan.order)
    last = {
        read: residency.position[again.before_op]
        for again in plan.events
        if isinstance(again, Recompute)
        for op in again.ops
        for read in graph.ops[op].reads
    }
    held = [
        (event.tensor, residency.position[event.after_op])
        for event in plan.events
        if isinstance(event, Release)
        and residency.position[event.after_op] > residency.table.last[event.tensor]
    ]
    assert held
    assert all(until <= last[tensor] for tensor, until in held)


@pytest.mark.slow
def test_a_plan_made_again_holds_what_the_former_one_did():
    graph = dense_block(LAYERS)
    former = plan_and_replay(_job(graph), _within(graph, 0.7))
    again = plan_and_replay(_job(graph, former=former.as_former), _within(graph, 0.5))
    first = plan_and_replay(_job(graph), _within(graph, 0.5))
    assert holds_sources(again.plan, graph)
    # Made at once, and slower than a first plan; one as fast is found while nobody waits.
    assert again.quick
    improving = _job(graph, former=again.as_former, improving=True)
    better = plan_and_replay(improving, _within(graph, 0.5))
    assert holds_sources(better.plan, graph)
    assert better.prediction.time_ns <= first.prediction.time_ns


def test_a_plan_made_again_holds_sources_where_there_is_less_memory_than_before():
    graph = dense_block(LAYERS)
    (eager,) = plan_jobs([_job(graph)], _within(graph, 1.0))
    assert not holds_sources(eager.plan, graph)
    less = plan_and_replay(_job(graph, former=eager.as_former), _within(graph, 0.5))
    assert holds_sources(less.plan, graph)


@pytest.mark.slow
@given(st.data())
@examples(60)
def test_plans_of_dense_blocks_replay_as_predicted(data):
    graph = dense_block(
        data.draw(st.integers(2, 9)),
        map_nbytes=data.draw(st.integers(1, 200)),
        wider=data.draw(st.integers(1, 6)),
    )
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)))
    budget = data.draw(st.integers(lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)))
    device = replace(data.draw(devices()), memory_nbytes=budget)
    made = plan_and_replay(job, device)
    event("holds" if holds_sources(made.plan, graph) else "holds nothing")
    assert made.budget_nbytes <= budget
    former = made.as_former
    less = data.draw(st.integers(lower_bound_peak_nbytes(graph), budget))
    again = plan_and_replay(replace(job, former=former), replace(device, memory_nbytes=less))
    assert again.budget_nbytes <= less
