"""What holds for every plan of the default policy, however good it is: judged by the replay, and by hand."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.packing.packed_graph import known_packed_graph
from tensile_db.scheduler.policies.packing import worth_packing
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples, one_in
from tests.fixtures.graphs import NETWORKS
from tests.graphs.random_graphs import devices, random_jobs
from tests.plans.replayed_plans import plan_and_replay
from tests.steps.small_step import small_step

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

DEVICE = machine("sim:a6000")


@given(st.data())
@examples(80)
def test_the_replay_of_a_plan_gives_the_predicted_peak_and_time_within_the_budget(data):
    job, device = data.draw(random_jobs()), data.draw(devices(costly_copies=True))
    (eager,) = plan_jobs([replace(job, policy="vanilla")], device)
    least = lower_bound_peak_nbytes(job.graph)
    budget = data.draw(st.integers(least, eager.prediction.vanilla_peak_nbytes))
    made = plan_and_replay(job, replace(device, memory_nbytes=budget))
    assert made.budget_nbytes <= budget


@given(st.data())
@examples(60)
def test_no_budget_above_the_bound_is_refused_and_none_below_is_met(data):
    job, device = data.draw(random_jobs()), data.draw(devices())
    packed = known_packed_graph(job.graph, worth_packing(job.graph)).graph
    least = min(lower_bound_peak_nbytes(graph) for graph in (job.graph, packed))
    assert plan_and_replay(job, replace(device, memory_nbytes=least)).budget_nbytes <= least
    with pytest.raises(DoesNotFit) as refusal:
        plan_jobs([job], replace(device, memory_nbytes=least - 1))
    assert refusal.value.needed_nbytes == least


@given(st.data())
@examples(40)
def test_where_everything_fits_nothing_is_done(data):
    job, device = data.draw(random_jobs()), data.draw(devices())
    (eager,) = plan_jobs([replace(job, policy="vanilla")], device)
    (made,) = plan_jobs([job], replace(device, memory_nbytes=eager.budget_nbytes))
    assert made.plan == replace(eager.plan, policy="auto")


@given(st.data())
@examples(25)
def test_jobs_planned_together_fit_together_and_equal_inputs_give_equal_plans(data):
    device = data.draw(devices())
    count = data.draw(st.integers(2, 3))
    jobs = [replace(data.draw(random_jobs(max_layers=4)), job_id=number) for number in range(count)]
    least = sum(lower_bound_peak_nbytes(job.graph) for job in jobs)
    device = replace(device, memory_nbytes=data.draw(st.integers(least, 2 * least)))
    made = plan_jobs(jobs, device)
    assert sum(job.budget_nbytes for job in made) <= device.memory_nbytes
    assert [job.plan for job in plan_jobs(jobs, device)] == [job.plan for job in made]


def test_jobs_are_planned_also_where_each_ones_part_of_the_link_is_below_a_byte_a_second():
    graph = small_step().graph
    jobs = [JobRequest(job_id=number, graph=graph, latencies_ns=[1000] * len(graph.ops)) for number in (1, 2)]
    least = 2 * lower_bound_peak_nbytes(graph)
    device = replace(DEVICE, d2h_bytes_per_s=1, h2d_bytes_per_s=1, memory_nbytes=least)
    assert sum(made.budget_nbytes for made in plan_jobs(jobs, device)) <= least


@pytest.mark.parametrize("captured_graph", one_in(4, NETWORKS), indirect=True)
def test_what_is_split_depends_neither_on_neighbours_nor_on_what_was_measured(captured_graph):
    latencies_ns = predict_latencies_ns(captured_graph, DEVICE)
    limit = int(0.97 * lower_bound_peak_nbytes(captured_graph))
    job = JobRequest(job_id=1, graph=captured_graph, latencies_ns=latencies_ns, memory_limit_nbytes=limit)
    slower = replace(job, latencies_ns=[2 * ns + place % 7 for place, ns in enumerate(latencies_ns)])
    neighbour = JobRequest(job_id=2, graph=captured_graph, latencies_ns=latencies_ns)
    (alone,) = plan_jobs([job], DEVICE)
    (later,) = plan_jobs([slower], DEVICE)
    beside, other = plan_jobs([job, neighbour], replace(DEVICE, memory_nbytes=4 * limit))
    assert alone.budget_nbytes <= limit
    assert alone.plan.splits
    assert alone.plan.splits == later.plan.splits == beside.plan.splits
    assert other.plan.splits == ()
