"""When `auto` packs, and what."""

from dataclasses import replace

import pytest
from torch import nn

from tensile_db.capture.optimizers import configure
from tensile_db.capture.train_step import capture_train_step
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import Plan
from tensile_db.scheduler.policies import packing, vanilla
from tensile_db.scheduler.policies.packing import worth_packing
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.timeline import simulate_settled
from tests.fixtures.drafts import DEVICE, job_of, within
from tests.steps.captured_steps import captured_step

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]


@pytest.fixture(scope="module")
def graph():
    return captured_step("test_resnet", batch=32, side=96, optimizer="momentum")


def test_a_job_that_somebody_waits_for_is_packed_wherever_memory_is_short(graph):
    packed = worth_packing(graph)
    assert packed
    for share, want in ((1.0, ()), (0.95, packed), (0.6, packed)):
        (made,) = plan_jobs([job_of(graph, at_once=True)], within(graph, share))
        assert made.plan.packed == want
        assert made.budget_nbytes <= share * vanilla.peak_nbytes(graph)


def large_of(graph):
    """Return what is packed where packing the small ones, too, is not worth it."""
    whole_nbytes = vanilla.peak_nbytes(graph)
    return tuple(
        tensor for tensor in worth_packing(graph) if graph.tensors[tensor].nbytes * 512 >= whole_nbytes
    )


def test_nothing_is_packed_where_that_gains_nothing(graph):
    (easy,) = plan_jobs([job_of(graph)], within(graph, 0.97))
    (hard,) = plan_jobs([job_of(graph)], within(graph, 0.6))
    assert len(large_of(graph)) < len(worth_packing(graph))
    assert (easy.plan.packed, hard.plan.packed) == ((), large_of(graph))
    assert easy.prediction.time_ns <= 1.001 * easy.prediction.vanilla_time_ns
    # Eager's peak and time are those of the captured step.
    assert {made.prediction.vanilla_peak_nbytes for made in (easy, hard)} == {vanilla.peak_nbytes(graph)}


def test_where_ops_are_faster_with_codes_it_is_packed_though_memory_is_hardly_short():
    wide = [nn.Linear(1024, 1024) for _ in range(4)]
    model = nn.Sequential(*wide[:2], nn.Dropout(0.1), *wide[2:], nn.Linear(1024, 10))
    step = capture_train_step(model, batch_shape=(8192, 1024), target="classes", optimizer=configure("sgd"))
    device = within(step.graph, 0.95)
    job = replace(job_of(step.graph), latencies_ns=predict_latencies_ns(step.graph, device))
    (made,) = plan_jobs([job], device)
    assert made.plan.packed == worth_packing(step.graph) != ()
    assert made.prediction.time_ns < made.prediction.vanilla_time_ns


@pytest.mark.parametrize("policy", ["tensile", "capuchin", "tsplit"])
def test_published_policies_pack_nothing(graph, policy):
    (made,) = plan_jobs([replace(job_of(graph), policy=policy)], within(graph, 0.6))
    assert made.plan.packed == ()


def test_what_is_packed_stays_so_with_the_plan_in_force_until_all_fits(graph):
    (first,) = plan_jobs([job_of(graph)], within(graph, 0.6))
    for share, want in ((0.55, True), (0.8, True), (1.0, False)):
        (again,) = plan_jobs([job_of(graph, former=first.as_former)], within(graph, share))
        assert bool(again.plan.packed) == want
        assert again.budget_nbytes <= share * vanilla.peak_nbytes(graph)


def test_a_job_is_packed_once_something_better_is_looked_for(graph):
    (easy,) = plan_jobs([job_of(graph)], within(graph, 0.97))
    (less,) = plan_jobs([job_of(graph, former=easy.as_former)], within(graph, 0.6))
    assert (easy.plan.packed, less.plan.packed, less.quick) == ((), (), True)
    asked = job_of(graph, former=less.as_former, improving=True)
    (better,) = plan_jobs([asked], within(graph, 0.6))
    assert better.plan.packed == large_of(graph)
    assert better.prediction.time_ns < less.prediction.time_ns
    assert not better.quick


@pytest.mark.parametrize(
    ("hurried", "careful", "want"),
    [
        # The second is not as likely, so that nothing more is asked.
        ((1.10, 1.00, 1.03), None, 1),
        # Of the two likeliest, in either order, what care says; the third is not looked at.
        ((1.10, 1.00, 1.01), {1: 1.2, 2: 1.1}, 2),
        ((1.10, 1.01, 1.00), {1: 1.2, 2: 1.1}, 2),
        ((1.00, 1.01, 1.015), {0: 1.1, 1: 1.2}, 0),
    ],
)
def test_of_two_likely_ways_to_pack_careful_plans_tell(graph, monkeypatch, hurried, careful, want):
    ways = [(), (1,), (1, 2)]
    monkeypatch.setattr(packing, "_ways_to_pack", lambda _: ways)
    asked = []

    def compared(job, chosen, *_):
        asked.append(job.hurried)
        times = dict(enumerate(hurried)) if job.hurried else careful
        assert {ways.index(way) for way in chosen} == set(times)
        return {way: times[ways.index(way)] for way in chosen}

    monkeypatch.setattr(packing, "_compared", compared)
    assert packing._careful_packed(job_of(graph), DEVICE, DEVICE.memory_nbytes, 1) == ways[want]
    assert asked == ([True] if careful is None else [True, False])


def test_ways_to_pack_are_compared_by_plans_within_the_budget(graph):
    budget = int(0.5 * vanilla.peak_nbytes(graph))
    job = job_of(graph, hurried=True)
    ways = packing._ways_to_pack(graph)
    took_ns = packing._compared(job, ways, DEVICE, budget, 1)
    assert list(took_ns) == ways
    assert len(set(took_ns.values())) == len(ways) == 3
    assert sum(job.latencies_ns) < min(took_ns.values()) < took_ns[()]


def test_a_packed_graph_is_the_plans(graph):
    (made,) = plan_jobs([job_of(graph)], within(graph, 0.6))
    planned = planned_graph(graph, made.plan)
    assert sorted(made.plan.order) == [op.id for op in planned.ops]
    assert isinstance(made.plan, Plan)
    assert len(planned.ops) == len(graph.ops) + len(made.plan.packed)


def test_what_a_plan_takes_is_known_whatever_its_graph_was_packed_from(graph):
    job, plan = job_of(graph), vanilla.plan_one(graph)
    _, timeline = simulate_settled(graph, job.latencies_ns, plan, DEVICE)
    named = replace(plan, policy="auto", packed=worth_packing(graph), quick=True)
    settled, known = simulate_settled(graph, job.latencies_ns, named, DEVICE)
    assert settled == named
    assert known is timeline
    other = replace(plan, events=plan.events[:-1])
    assert simulate_settled(graph, job.latencies_ns, other, DEVICE)[1] is not timeline
