"""One pass of swaps meets every budget from the bound on, and what is needed last leaves first."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Phase, Role
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.furthest import evict_furthest
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import Recompute
from tensile_db.scheduler.policies import attempts, drafts, vanilla
from tensile_db.scheduler.policies.alone import period_ns, plan_at_once, plan_one
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples
from tests.graphs.hand_made import graph_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs, without_codes
from tests.plans.drafted_jobs import tight_jobs
from tests.plans.replayed_plans import plan_and_replay

pytestmark = pytest.mark.usefixtures("little_effort")


def _stack(layers):
    """Return a step whose forward ops make one feature map each, read backwards in the reverse order."""
    tensors = [(10, Role.ACTIVATION)] * layers
    forward = [("make", Phase.FORWARD, (), (layer,), False) for layer in range(layers)]
    backward = [("read", Phase.BACKWARD, (layer,), (), False) for layer in reversed(range(layers))]
    return graph_of(tensors, [*forward, *backward])


def test_what_is_needed_last_leaves_first_and_until_it_is_needed():
    graph = _stack(5)
    residency = Residency(graph, [1] * len(graph.ops))
    assert evict_furthest(residency, 30)
    away = {tensor: [(a.begin, a.end) for a in held] for tensor, held in residency.absences.items()}
    # Beside the fourth and the fifth map two others stay; maps 0 and 1 are read at positions 9 and 8.
    assert away == {0: [(3, 9)], 1: [(4, 8)]}
    assert residency.peak_nbytes == 30


def test_what_an_op_needs_for_itself_cannot_leave():
    assert not evict_furthest(Residency(_stack(3), [1] * 6), 9)
    assert evict_furthest(Residency(_stack(3), [1] * 6), 10)


@pytest.mark.slow
@given(st.data())
@examples(150)
def test_every_budget_from_the_bound_on_is_met(data):
    graph = data.draw(training_graphs())
    residency = Residency(graph, data.draw(latencies_for(graph)))
    least_nbytes = lower_bound_peak_nbytes(graph)
    budget = data.draw(st.integers(least_nbytes, max(least_nbytes, vanilla.peak_nbytes(graph))))
    assert evict_furthest(residency, budget)
    assert residency.peak_nbytes <= budget


@pytest.mark.slow
@given(st.data())
@examples(40)
def test_a_graph_of_very_many_ops_is_planned_without_the_published_algorithms(data):
    graph = data.draw(training_graphs())
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)))
    device = replace(data.draw(devices()), memory_nbytes=lower_bound_peak_nbytes(graph))
    published = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(attempts, "_PUBLISHED_OPS", 0)
        patched.setattr(attempts.Planner, "_as_published", lambda *asked: published.append(asked))
        made = plan_and_replay(job, device)
    assert not published
    assert made.budget_nbytes <= device.memory_nbytes


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [True, False])
@given(tight=tight_jobs())
@examples(60)
def test_no_plan_of_a_job_that_mostly_waits_takes_longer_than_swaps_alone(at_once, tight):
    job, device, budget_nbytes = tight
    plan = (plan_at_once if at_once else plan_one)(job, device, budget_nbytes, 1)
    swaps = attempts.Planner(job, device, budget_nbytes, 1).by_swaps()
    took_ns, ops_ns = period_ns(job, plan, device), sum(job.latencies_ns)
    assert took_ns <= max(attempts.SLOW * ops_ns, swaps.period_ns)
    event("mostly waits" if took_ns > attempts.SLOW * ops_ns else "does not")


@pytest.mark.slow
@given(st.data())
@examples(60)
def test_where_no_choices_meet_the_budget_one_pass_of_swaps_does(data):
    # Packed, a job that somebody waits for may be planned otherwise than one with care.
    graph = without_codes(data.draw(training_graphs()))
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)))
    device = replace(data.draw(devices()), memory_nbytes=vanilla.peak_nbytes(graph))
    (eager,) = plan_jobs([job], device)
    less = replace(device, memory_nbytes=lower_bound_peak_nbytes(graph))
    with pytest.MonkeyPatch.context() as patched:
        # As where recomputations leave the budget out of reach.
        patched.setattr(drafts, "evict_to_budget", lambda *_: False)
        patched.setattr(attempts, "_PUBLISHED_OPS", 0)
        first = plan_and_replay(replace(job, hurried=True), less)
        again = plan_and_replay(replace(job, former=eager.as_former), less)
    assert not any(isinstance(each, Recompute) for each in first.plan.events)
    assert first.budget_nbytes <= less.memory_nbytes
    assert not any(isinstance(each, Recompute) for each in again.plan.events)
    # Where somebody waits, in one order of the ops.
    assert first.prediction.time_ns <= again.prediction.time_ns
    event("quick" if again.quick else "as eager")
    assert (first.quick, again.quick) == (False, eager.budget_nbytes > less.memory_nbytes)
