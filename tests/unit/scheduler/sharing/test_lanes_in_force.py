"""Jobs that are planned again keep their lanes and their memory as long as those are as good as they were."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing import shared_plans
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tests.examples import examples
from tests.graphs.hand_made import chain, device_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs

pytestmark = pytest.mark.usefixtures("little_effort")

#: Two of these jobs stall in turns, and so get a lane each.
DEVICE = device_of(768)


def _jobs(latency_ns=100, count=2):
    graph = chain(state_nbytes=300)
    latencies_ns = (latency_ns,) * len(graph.ops)
    return [JobRequest(job_id=n, graph=graph, latencies_ns=latencies_ns) for n in range(count)]


def _again(jobs, made):
    """Return the jobs with the plans that are in force now."""
    return [replace(job, former=plan.job_plan.as_former) for job, plan in zip(jobs, made, strict=True)]


@pytest.fixture
def chosen_anew(monkeypatch):
    """Return a list that grows when lanes are chosen."""
    choices = []
    choose = shared_plans._in_chosen_lanes

    def chosen(*arguments, **options):
        choices.append(arguments)
        return choose(*arguments, **options)

    monkeypatch.setattr(shared_plans, "_in_chosen_lanes", chosen)
    return choices


def test_after_a_drift_everybody_keeps_lane_and_memory(chosen_anew):
    made = plan_shared(_jobs(), DEVICE)
    assert [plan.share.lane for plan in made] == [0, 1]
    assert {plan.within.among for plan in made} == {(0, 1)}
    in_force = [plan.within for plan in made]
    again = plan_shared(_again(_jobs(101), made), DEVICE, in_force=in_force)
    assert len(chosen_anew) == 1
    assert [(plan.share, plan.within) for plan in again] == [(plan.share, plan.within) for plan in made]
    # What a round took is remembered as it was when the lanes were chosen, so small drifts add up.
    third = plan_shared(_again(_jobs(80), again), DEVICE, in_force=[plan.within for plan in again])
    assert len(chosen_anew) == 2
    assert third[0].within.slowdown > 1.02 * made[0].within.slowdown


def test_lanes_in_which_jobs_stall_less_than_they_did_may_be_worse_than_others_now(chosen_anew):
    device = device_of(745)
    made = plan_shared(_jobs(), device)
    assert [plan.share.lane for plan in made] == [0, 1]
    # In turns they would be slowed down by less than the 1.11 that are left of 1.27 in these lanes.
    again = plan_shared(_again(_jobs(200), made), device, in_force=[plan.within for plan in made])
    assert len(chosen_anew) == 2
    assert [plan.share.lane for plan in again] == [0, 0]
    assert again[0].within.slowdown == pytest.approx(1.055)


def test_ops_that_are_shorter_than_they_were_predicted_get_more_lanes(chosen_anew):
    # Launching an op takes half of its time, and all of both jobs fits.
    device = replace(device_of(1200), op_overhead_ns=50)
    made = plan_shared(_jobs(1000), device)
    assert [plan.share.lane for plan in made] == [0, 0]
    again = plan_shared(_again(_jobs(100), made), device, in_force=[plan.within for plan in made])
    assert [plan.share.lane for plan in again] == [0, 1]
    assert again[0].within.slowdown == pytest.approx(0.5)
    # Somewhat longer ones keep them.
    third = plan_shared(_again(_jobs(110), again), device, in_force=[plan.within for plan in again])
    assert [plan.share.lane for plan in third] == [0, 1]
    assert len(chosen_anew) == 2


@pytest.mark.slow
@pytest.mark.parametrize("change", ["a job less", "another job", "less memory", "unknown", "not asked"])
def test_lanes_are_chosen_anew_for_other_jobs_and_another_device(change, chosen_anew):
    made = plan_shared(_jobs(), DEVICE)
    jobs, in_force, device = _again(_jobs(), made), [plan.within for plan in made], DEVICE
    if change == "a job less":
        jobs, in_force = jobs[:1], in_force[:1]
    elif change == "another job":
        jobs = [jobs[0], replace(jobs[1], job_id=2)]
    elif change == "less memory":
        device = device_of(760)
    elif change == "unknown":
        in_force = [in_force[0], None]
    else:
        in_force = []
    again = plan_shared(jobs, device, in_force=in_force)
    assert len(chosen_anew) == 2
    assert {plan.within.among for plan in again} == {tuple(sorted(job.job_id for job in jobs))}


def test_what_is_asked_of_served_models_is_looked_at_each_time(chosen_anew):
    training, serving = _jobs()
    jobs = [training, replace(serving, unused_ns=0)]
    made = plan_shared(jobs, DEVICE)
    plan_shared(_again(jobs, made), DEVICE, in_force=[plan.within for plan in made])
    assert len(chosen_anew) == 2


@pytest.mark.slow
@examples(24)
@given(st.data())
def test_kept_lanes_fit_the_memory(data):
    graphs = [data.draw(training_graphs()) for _ in range(data.draw(st.integers(1, 3)))]
    jobs = [
        JobRequest(job_id=n, graph=graph, latencies_ns=data.draw(latencies_for(graph)))
        for n, graph in enumerate(graphs)
    ]
    least = max(lower_bound_peak_nbytes(graph) for graph in graphs)
    ample = sum(vanilla.peak_nbytes(graph) for graph in graphs)
    memory = int(least + data.draw(st.sampled_from([0.0, 0.2, 0.5])) * (ample - least))
    device = replace(data.draw(devices()), memory_nbytes=memory)
    made = plan_shared(jobs, device)
    drifted = [replace(job, latencies_ns=data.draw(latencies_for(job.graph))) for job in _again(jobs, made)]
    again = plan_shared(drifted, device, in_force=[plan.within for plan in made])
    assert needed_nbytes(plan.share for plan in again) <= memory
    assert all(plan.job_plan.program.guaranteed_peak_nbytes <= plan.share.budget_nbytes for plan in again)
    kept = [plan.within.grant for plan in again] == [plan.within.grant for plan in made]
    event("kept" if kept else "chosen anew")
