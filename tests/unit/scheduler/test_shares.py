"""Who gets how much of a device's memory, by policy."""

from dataclasses import replace

import pytest

from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.plan import SwapOut
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import as_rewritten
from tensile_db.scheduler.shares import check_bounds, share, sharers_of_link
from tensile_db.scheduler.timeline import simulate
from tests.examples import one_in
from tests.graphs.hand_made import chain, device_of
from tests.graphs.networks_by_hand import plain


def _job(number: int, policy: str, **changes) -> JobRequest:
    graph = changes.pop("graph", plain(9))
    latencies_ns = changes.pop("latencies_ns", [1000] * len(graph.ops))
    return JobRequest(job_id=number, graph=graph, latencies_ns=latencies_ns, policy=policy, **changes)


def planned_ns(plan, graph, latencies_ns, device):
    """Return what an iteration takes by the plan."""
    job = as_rewritten(JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns), plan.rewriting, device)
    return simulate(job.graph, job.latencies_ns, plan, device).period_ns


def test_ample_memory_gives_each_job_what_it_wants_up_to_its_limit():
    assert share([chain(), chain()], [291, 291], [1000, 250], 1000) == [291, 250]


def test_short_memory_gives_each_job_its_bound_and_a_share_of_the_rest_by_what_it_wants_beyond():
    # The bound of both is 240 B; beyond it they want 60 and 20 B, and there are 40 B.
    assert share([chain(), chain()], [300, 260], [1000, 1000], 520) == [270, 250]
    assert share([chain(), chain()], [300, 260], [1000, 1000], 420, lambda graph: 200) == [212, 207]


def test_bounds_above_a_limit_or_above_the_memory_together_are_refused():
    with pytest.raises(DoesNotFit) as refusal:
        check_bounds([chain()], [239], 1000)
    assert (refusal.value.needed_nbytes, refusal.value.budget_nbytes) == (240, 239)
    with pytest.raises(DoesNotFit) as refusal:
        check_bounds([chain(), chain()], [1000, 1000], 479, hint="Train them one by one.")
    assert (refusal.value.needed_nbytes, refusal.value.budget_nbytes) == (480, 479)
    assert refusal.value.hint == "Train them one by one."


def test_jobs_whose_policies_heed_no_budget_take_what_they_need_and_the_others_share_the_rest():
    (alone,) = plan_jobs([_job(1, "checkpoint")], device_of(10**6))
    jobs = [_job(1, "capuchin"), _job(2, "checkpoint"), _job(3, "capuchin")]
    memory_nbytes = alone.budget_nbytes + 1200
    first, second, third = plan_jobs(jobs, device_of(memory_nbytes))
    assert second.budget_nbytes == alone.budget_nbytes == 711
    assert first.budget_nbytes == third.budget_nbytes <= 600
    with pytest.raises(DoesNotFit):
        plan_jobs(jobs, device_of(alone.budget_nbytes + 601))


def test_plans_that_heed_no_budget_are_refused_where_they_fit_alone_but_not_together():
    jobs = [_job(1, "checkpoint"), _job(2, "checkpoint")]
    assert sum(plan.budget_nbytes for plan in plan_jobs(jobs, device_of(1422))) == 1422
    with pytest.raises(DoesNotFit) as refusal:
        plan_jobs(jobs, device_of(1421))
    assert refusal.value.needed_nbytes == 1422
    with pytest.raises(DoesNotFit) as refusal:
        plan_jobs([_job(1, "checkpoint", memory_limit_nbytes=710)], device_of(10**6))
    assert refusal.value.needed_nbytes == 711


def test_a_jobs_copies_share_the_link_with_those_of_as_many_as_compute_at_once():
    device = device_of(10**6)
    assert [sharers_of_link(jobs, replace(device, concurrency=2)) for jobs in (1, 2, 5)] == [1, 2, 2]
    assert [sharers_of_link(jobs, replace(device, concurrency=1)) for jobs in (1, 2, 5)] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("little_effort")
@pytest.mark.parametrize("policy", one_in(2, ["auto", "auto_split"]))
@pytest.mark.parametrize("captured_graph", ["test_resnet"], indirect=True)
def test_jobs_whose_ops_take_turns_are_planned_as_each_would_be_alone(captured_graph, policy):
    device = machine("sim:a6000")
    latencies_ns = predict_latencies_ns(captured_graph, device)
    nbytes = vanilla.peak_nbytes(captured_graph) // 2

    def plans(jobs, device):
        memory_nbytes = jobs * nbytes
        requests = [_job(n, policy, graph=captured_graph, latencies_ns=latencies_ns) for n in range(jobs)]
        return [made.plan for made in plan_jobs(requests, replace(device, memory_nbytes=memory_nbytes))]

    (alone,) = plans(1, device)
    assert any(isinstance(event, SwapOut) for event in alone.events)
    assert plans(2, device) == [alone, alone]
    # Where both compute at once, copies have half of the link.
    halved = replace(
        device,
        d2h_bytes_per_s=device.d2h_bytes_per_s // 2,
        h2d_bytes_per_s=device.h2d_bytes_per_s // 2,
    )
    at_once, _ = plans(2, replace(device, concurrency=2))
    assert at_once.events != alone.events
    assert planned_ns(at_once, captured_graph, latencies_ns, halved) <= planned_ns(
        alone, captured_graph, latencies_ns, halved
    )
