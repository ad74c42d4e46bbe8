"""Local search among choices: it counts what a plan of them holds, and finds what greed does not."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.candidates import find_candidates
from tensile_db.scheduler.choosing.choices import Choices
from tensile_db.scheduler.choosing.course import Course
from tensile_db.scheduler.choosing.gaps import RECOMPUTE, STAY, SWAP, chosen_in
from tensile_db.scheduler.choosing.search import descend, search
from tensile_db.scheduler.choosing.sources import find_sources
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import searches, vanilla
from tensile_db.scheduler.policies.attempts import Planner
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.settling.assemble import assemble
from tests.examples import examples
from tests.graphs.dense_block import dense_block
from tests.graphs.hand_made import device_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs
from tests.steps.captured_steps import captured_step

DEVICE = machine("sim:a6000")


class _Begun:
    """A job of which nothing is chosen yet."""

    def __init__(self, graph, latencies_ns, device, budget_nbytes, *, holds=False):
        self.budget_nbytes = budget_nbytes
        self.residency = Residency(graph, latencies_ns)
        sources = find_sources(self.residency, near_ns=0, least_nbytes=1) if holds else {}
        for tensor, until in sources.items():
            self.residency.hold(tensor, until)
            self.residency.need(tensor, until)
        # As if memory were ample, so that there is much to choose from.
        ample_nbytes = vanilla.peak_nbytes(graph)
        candidates = find_candidates(
            self.residency, device, near_ns=0, least_nbytes=1, budget_nbytes=ample_nbytes
        )
        self.choices = Choices(
            self.residency, Link(device), candidates.by_gap, budget_nbytes=budget_nbytes, least_nbytes=1
        )
        self.course = Course(self.choices.gaps, self.residency, budget_nbytes)


@st.composite
def _begun(draw):
    graph = draw(training_graphs())
    latencies_ns, device = draw(latencies_for(graph)), draw(devices(costly_copies=True))
    budget_nbytes = draw(st.integers(1, vanilla.peak_nbytes(graph)))
    return lambda: _Begun(graph, latencies_ns, replace(device, duplex=True), budget_nbytes)


def _any_choices(data, gaps, among=(STAY, SWAP, RECOMPUTE)):
    return [
        data.draw(st.sampled_from([each for each in among if each != RECOMPUTE or may_recompute]))
        for may_recompute in gaps.may_recompute.tolist()
    ]


@pytest.mark.parametrize("other", [SWAP, RECOMPUTE])
@given(data=st.data())
@examples(150)
def test_the_course_of_choices_is_what_a_plan_of_them_holds_and_takes(other, data):
    begun = data.draw(_begun())()
    gaps = begun.choices.gaps
    chosen = _any_choices(data, gaps, (STAY, other))
    cost_ns, short_at = begun.course.of(np.array(chosen, dtype=np.int64))
    recompute_ns = begun.choices.take(chosen)
    lost_ns = sum(gaps.lost_ns[index] for index, choice in enumerate(chosen) if choice == SWAP)
    assert cost_ns >= recompute_ns + lost_ns
    above_nbytes = begun.residency.footprint - begun.budget_nbytes
    # What would come late, or would be away during no op, stays.
    taken = begun.choices.chosen == chosen
    event(f"all taken: {taken}")
    if taken:
        assert short_at.tolist() == np.nonzero(above_nbytes > 0)[0].tolist()
        assert len(short_at) or cost_ns == recompute_ns + lost_ns


@given(data=st.data())
@examples(100)
def test_the_course_holds_sources_as_long_as_what_is_chosen_reads_them(data):
    graph = dense_block(12)
    latencies_ns = [300 for _ in graph.ops]
    budget_nbytes = data.draw(st.integers(1, vanilla.peak_nbytes(graph)))
    # So slow a link that it is no use.
    begun = _Begun(graph, latencies_ns, device_of(10**5, 10**8), budget_nbytes, holds=True)
    until = dict(begun.residency.held_until)
    assert until
    assert begun.choices.gaps.may_recompute.any()
    chosen = _any_choices(data, begun.choices.gaps, (STAY, RECOMPUTE))
    _, short_at = begun.course.of(np.array(chosen, dtype=np.int64))
    begun.choices.take(chosen)
    event(f"some are held for less: {begun.residency.held_until != until}")
    assert short_at.tolist() == np.nonzero(begun.residency.footprint > budget_nbytes)[0].tolist()


@given(data=st.data())
@examples(100)
def test_where_copies_take_the_ops_time_nothing_is_made_from_sources_that_are_released(data):
    graph = dense_block(12)
    latencies_ns = [300 for _ in graph.ops]
    budget_nbytes = data.draw(st.integers(lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)))
    # A copy costs the ops more than most recomputations do.
    device = replace(device_of(10**5, 10**8), copies_cost_bytes_per_s=10**8)
    begun = _Begun(graph, latencies_ns, device, budget_nbytes, holds=True)
    until = dict(begun.residency.held_until)
    begun.choices.take(_any_choices(data, begun.choices.gaps, (STAY, RECOMPUTE)))
    begun.choices.meet_budget()
    begun.choices.take_back()
    event(f"some are held for less: {begun.residency.held_until != until}")
    lower(graph, assemble(begun.residency, "auto"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "map_nbytes", "wider", "budget_nbytes", "rate", "seed"),
    [
        (8, 100, 4, 4_865, 10**9, 10_620),
        (10, 1000, 1, 39_039, 10**10, 618_216),
        (16, 100, 2, 5_511, 3 * 10**9, 995_852),
    ],
)
def test_what_is_found_is_mended_without_sources_that_are_released(
    layers, map_nbytes, wider, budget_nbytes, rate, seed
):
    graph = dense_block(layers, map_nbytes=map_nbytes, wider=wider)
    draw = Random(seed)
    job = JobRequest(job_id=1, graph=graph, latencies_ns=tuple(draw.randint(100, 600) for _ in graph.ops))
    (made,) = plan_jobs([job], device_of(budget_nbytes, rate))
    (greedy,) = plan_jobs([replace(job, hurried=True)], device_of(budget_nbytes, rate))
    assert made.prediction.time_ns <= greedy.prediction.time_ns
    assert made.prediction.guaranteed_peak_nbytes <= budget_nbytes


def test_a_job_without_gaps_is_planned():
    """What is short of memory is so by tensors that are too small to be worth choosing for."""
    begun = _Begun(dense_block(2), [300] * len(dense_block(2).ops), DEVICE, 1)
    gaps = Choices(begun.residency, Link(DEVICE), [], budget_nbytes=1, least_nbytes=10**12).gaps
    assert gaps.all == []
    course = Course(gaps, begun.residency, 10**12)
    assert descend(course, search(course, [], range(2))) == ([], 0.0)


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_ops_that_take_no_time_are_planned(share):
    graph = dense_block(8)
    least, most = lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)
    job = JobRequest(job_id=1, graph=graph, latencies_ns=(0,) * len(graph.ops))
    budget_nbytes = int(least + share * (most - least))
    (made,) = plan_jobs([job], device_of(budget_nbytes))
    assert made.prediction.guaranteed_peak_nbytes <= budget_nbytes


@pytest.mark.slow
@given(_begun())
@examples(60)
def test_what_is_found_costs_no_more_than_what_it_began_with_and_is_the_same_each_time(begin):
    begun = begin()
    begun.choices.meet_budget()
    begun.choices.take_back()
    start, course = begun.choices.chosen, begun.course
    found = search(course, start, range(5))
    assert course.of(np.array(found, dtype=np.int64))[0] <= course.of(np.array(start, dtype=np.int64))[0]
    assert search(course, start, range(5)) == found
    soon, cost_ns = descend(course, start)
    assert cost_ns == course.of(np.array(soon, dtype=np.int64))[0]
    assert cost_ns <= course.of(np.array(start, dtype=np.int64))[0]
    assert descend(course, start) == (soon, cost_ns)


@given(st.data())
@examples(100)
def test_choices_are_read_back_from_their_plan(data):
    begun = data.draw(_begun())()
    begun.choices.take(_any_choices(data, begun.choices.gaps))
    plan = assemble(begun.residency, "auto")
    assert chosen_in(plan, begun.choices.gaps) == begun.choices.chosen


@pytest.fixture(scope="module")
def vgg_job():
    graph = captured_step("vgg11", batch=64, side=64)
    return JobRequest(job_id=1, graph=graph, latencies_ns=predict_latencies_ns(graph, DEVICE))


@pytest.mark.usefixtures("little_effort")
@pytest.mark.thorough
def test_who_waits_for_a_network_with_a_huge_layer_has_most_of_what_search_finds(vgg_job):
    budget_nbytes = int(0.55 * vanilla.peak_nbytes(vgg_job.graph))
    device = replace(DEVICE, memory_nbytes=budget_nbytes)
    greedy = Planner(vgg_job, DEVICE, budget_nbytes, 1).fastest()
    (searched,) = plan_jobs([vgg_job], device)
    for waited_for in (replace(vgg_job, at_once=True), replace(vgg_job, hurried=True)):
        (made,) = plan_jobs([waited_for], device)
        assert made.prediction.guaranteed_peak_nbytes <= budget_nbytes
        assert searched.prediction.time_ns <= made.prediction.time_ns <= 0.9 * greedy.period_ns


@pytest.mark.usefixtures("little_effort")
@pytest.mark.slow
def test_in_haste_the_first_order_that_promises_enough_is_taken(vgg_job, monkeypatch):
    descents = []
    descend = searches.descend
    monkeypatch.setattr(searches, "descend", lambda *begun: descents.append(1) or descend(*begun))
    device = replace(DEVICE, memory_nbytes=int(0.55 * vanilla.peak_nbytes(vgg_job.graph)))
    # What is split is known from now on.
    (closely,) = plan_jobs([replace(vgg_job, at_once=True)], device)
    descents.clear()
    (hastily,) = plan_jobs([replace(vgg_job, at_once=True, in_haste=True)], device)
    assert len(descents) == 1
    assert hastily.prediction.guaranteed_peak_nbytes <= device.memory_nbytes
    assert hastily.prediction.time_ns <= 1.05 * closely.prediction.time_ns
    descents.clear()
    plan_jobs([replace(vgg_job, at_once=True)], device)
    assert len(descents) > 1


@pytest.mark.usefixtures("little_effort")
@pytest.mark.slow
def test_with_less_memory_what_search_found_is_mended(vgg_job):
    budget_nbytes = int(0.6 * vanilla.peak_nbytes(vgg_job.graph))
    (made,) = plan_jobs([vgg_job], replace(DEVICE, memory_nbytes=budget_nbytes))
    less_nbytes = int(0.92 * made.prediction.guaranteed_peak_nbytes)
    less = replace(DEVICE, memory_nbytes=less_nbytes)
    (again,) = plan_jobs([replace(vgg_job, former=made.as_former)], less)
    (searched,) = plan_jobs([vgg_job], less)
    assert again.prediction.guaranteed_peak_nbytes <= less_nbytes
    assert again.prediction.time_ns <= 1.1 * searched.prediction.time_ns


@pytest.mark.usefixtures("little_effort")
@pytest.mark.slow
def test_a_network_with_a_huge_layer_gets_a_faster_plan_than_by_greed_and_keeps_it(vgg_job):
    budget_nbytes = int(0.55 * vanilla.peak_nbytes(vgg_job.graph))
    greedy = Planner(vgg_job, DEVICE, budget_nbytes, 1).fastest()
    (made,) = plan_jobs([vgg_job], replace(DEVICE, memory_nbytes=budget_nbytes))
    assert made.prediction.guaranteed_peak_nbytes <= budget_nbytes
    assert made.prediction.time_ns <= 0.97 * greedy.period_ns
    # With more memory choices are made anew, without a search: what was found is not lost.
    more = replace(DEVICE, memory_nbytes=int(1.06 * made.prediction.guaranteed_peak_nbytes))
    (again,) = plan_jobs([replace(vgg_job, former=made.as_former)], more)
    assert again.prediction.time_ns <= 1.001 * made.prediction.time_ns
