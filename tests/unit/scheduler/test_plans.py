"""Plans of all policies over random graphs, judged by the replay that shares no planner code."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import Recompute, SwapOut
from tensile_db.scheduler.plan_json import plan_from_json, plan_to_json
from tensile_db.scheduler.policies import vanilla
from tests.examples import examples
from tests.graphs.random_graphs import devices, random_jobs
from tests.plans.oracle import replay

pytestmark = pytest.mark.usefixtures("little_effort")


def _document(job, made, device):
    return plan_to_json(job.graph, job.latencies_ns, device, made.plan, made.prediction, made.timeline)


@given(st.data())
@examples(150)
def test_the_replay_of_a_vanilla_plan_gives_the_predicted_peak_and_time(data):
    job, device = data.draw(random_jobs("vanilla")), data.draw(devices())
    (made,) = plan_jobs([job], device)
    seen = replay(_document(job, made, device))
    assert seen.peak_nbytes == made.prediction.peak_nbytes == made.prediction.guaranteed_peak_nbytes
    assert seen.period_ns == made.prediction.time_ns == sum(job.latencies_ns)
    eager = made.prediction.vanilla_peak_nbytes, made.prediction.vanilla_time_ns
    assert (seen.peak_nbytes, seen.period_ns) == eager


@pytest.mark.slow
@given(st.data())
@examples(300)
def test_the_replay_of_a_tensile_plan_gives_the_predicted_peak_and_time_within_the_budget(data):
    job, device = data.draw(random_jobs("tensile")), data.draw(devices(costly_copies=True))
    (free,) = plan_jobs([job], device)
    least = lower_bound_peak_nbytes(job.graph)
    budget = data.draw(st.integers(least, free.prediction.vanilla_peak_nbytes))
    device = replace(device, memory_nbytes=budget)
    (made,) = plan_jobs([job], device)
    seen = replay(_document(job, made, device), iterations=14)
    event("swaps" if any(isinstance(e, SwapOut) for e in made.plan.events) else "no swaps")
    event("recomputes" if any(isinstance(e, Recompute) for e in made.plan.events) else "no recomputation")
    event("stalls" if made.prediction.time_ns > sum(job.latencies_ns) else "hides everything")
    assert made.budget_nbytes <= budget
    assert seen.peak_nbytes <= made.prediction.guaranteed_peak_nbytes
    assert seen.peak_nbytes == made.prediction.peak_nbytes
    assert seen.period_ns == made.prediction.time_ns


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["auto", "tensile"])
@given(data=st.data())
@examples(60)
def test_ops_and_copies_run_when_the_document_says(data, policy):
    job, device = data.draw(random_jobs(policy)), data.draw(devices(costly_copies=True))
    least, eager = lower_bound_peak_nbytes(job.graph), vanilla.peak_nbytes(job.graph)
    device = replace(device, memory_nbytes=data.draw(st.integers(least, eager)))
    (made,) = plan_jobs([job], device)
    document = _document(job, made, device)
    told, seen = document["timeline"], replay(document, iterations=14).timeline
    event("copies" if told["copies"] else "no copies")
    event("copies beyond the end" if any(c["end_ns"] > told["period_ns"] for c in told["copies"]) else "all")
    event("runs again" if any(run["recompute"] for run in told["runs"]) else "runs once")
    told["copies"].sort(key=lambda copy: (copy["begin_ns"], copy["tensor"], copy["to_host"]))
    assert told == seen
    assert told["period_ns"] == document["predicted"]["time_ns"]


@given(st.data())
@examples(100)
def test_without_a_budget_swaps_never_stall_an_op(data):
    job, device = data.draw(random_jobs("tensile")), data.draw(devices())
    (made,) = plan_jobs([job], device)
    assert made.prediction.time_ns == sum(job.latencies_ns)
    assert made.prediction.guaranteed_peak_nbytes <= made.prediction.vanilla_peak_nbytes


@given(st.data())
@examples(60)
def test_a_budget_below_the_largest_op_is_refused_with_the_least_that_would_do(data):
    job, device = data.draw(random_jobs("tensile")), data.draw(devices())
    least = lower_bound_peak_nbytes(job.graph)
    with pytest.raises(DoesNotFit) as refusal:
        plan_jobs([job], replace(device, memory_nbytes=least - 1))
    assert refusal.value.needed_nbytes == least
    (made,) = plan_jobs([job], replace(device, memory_nbytes=least))
    assert made.budget_nbytes <= least


@given(st.data())
@examples(60)
def test_jobs_planned_together_fit_the_device_together(data):
    device = data.draw(devices())
    count = data.draw(st.integers(2, 4))
    jobs = [replace(data.draw(random_jobs("tensile")), job_id=number) for number in range(count)]
    least = sum(lower_bound_peak_nbytes(job.graph) for job in jobs)
    memory = data.draw(st.integers(least, 2 * least))
    made = plan_jobs(jobs, replace(device, memory_nbytes=memory))
    assert sum(plan.budget_nbytes for plan in made) <= memory
    for job, plan in zip(jobs, made, strict=True):
        assert replay(_document(job, plan, device)).peak_nbytes <= plan.budget_nbytes


@given(st.data())
@examples(40)
def test_a_plan_survives_its_json_and_equal_inputs_give_equal_plans(data):
    job, device = data.draw(random_jobs("tensile")), data.draw(devices())
    (first,), (second,) = plan_jobs([job], device), plan_jobs([job], device)
    assert first.plan == second.plan
    assert plan_from_json(_document(job, first, device)) == first.plan
