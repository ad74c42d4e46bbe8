"""`auto` with splits by choice: against the policies that it is made of, and what keeps its splits."""

from dataclasses import replace
from functools import cache

import pytest

from tensile_db.errors import DoesNotFit
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import alone, in_parts, vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import packed_graph
from tensile_db.scheduler.splitting.ways import keep_bits
from tensile_db.scheduler.timeline import simulate_settled
from tests.examples import one_in
from tests.plans.replayed_plans import check_by_replay, plan_and_replay
from tests.steps.captured_steps import SMALL, captured_step

#: Left out of `make check`.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

DEVICE = machine("sim:a6000")


@pytest.fixture(scope="module")
def job():
    graph = captured_step(SMALL, batch=16, side=96)
    latencies_ns = predict_latencies_ns(graph, DEVICE)
    return JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, policy="auto_split")


def within(share, job):
    """Return the device with memory between the job's bound (0) and eager's peak (1)."""
    least_nbytes, eager_nbytes = lower_bound_peak_nbytes(job.graph), vanilla.peak_nbytes(job.graph)
    return replace(DEVICE, memory_nbytes=int(least_nbytes + share * (eager_nbytes - least_nbytes)))


@pytest.fixture(scope="module")
def planned(job):
    """Plan the job by a policy within a share of the memory, once."""

    @cache
    def plan(policy, share):
        (made,) = plan_jobs([replace(job, policy=policy)], within(share, job))
        return made

    return plan


@pytest.mark.parametrize("share", one_in(3, [0.2, 0, 0.5]))
def test_no_slower_than_what_it_chooses_from(job, planned, share):
    device = within(share, job)
    made = planned("auto_split", share)
    check_by_replay(job, made, device)
    assert made.budget_nbytes <= device.memory_nbytes
    auto = planned("auto", share)
    # A search ends with a plan that is hardly slower than the ops.
    assert made.prediction.time_ns <= 1.002 * auto.prediction.time_ns
    (tsplit,) = plan_jobs([replace(job, policy="tsplit")], device)
    if made.plan.splits == tsplit.plan.splits:
        assert made.prediction.time_ns <= 1.01 * tsplit.prediction.time_ns


@pytest.mark.parametrize("policy", one_in(2, ["auto_split", "auto"]))
def test_at_the_bound_of_whole_ops_splits_make_it_faster(job, planned, policy):
    device = within(0, job)
    made = planned(policy, 0)
    whole = alone.plan_one(job, device, device.memory_nbytes, 1)
    assert made.plan.splits
    assert made.prediction.time_ns < 0.95 * time_of(job, whole)


@pytest.mark.parametrize("share", one_in(2, [-0.1, 0]))
def test_auto_exact_splits_only_what_keeps_every_bit(job, planned, share):
    device = within(share, job)
    exact = plan_and_replay(replace(job, policy="auto_exact"), device)
    assert exact.plan.policy == "auto_exact"
    assert exact.plan.splits
    assert keep_bits(packed_graph(job.graph, exact.plan.rewriting), exact.plan.splits)
    auto = planned("auto", share)
    assert auto.prediction.time_ns <= 1.02 * exact.prediction.time_ns


@pytest.mark.parametrize("policy", one_in(2, ["auto_split", "auto"]))
def test_for_a_question_of_what_would_be_only_what_must_be_split_is(job, policy):
    supposed = replace(job, policy=policy, splits_by_need=True)
    (made,) = plan_jobs([supposed], within(0, job))
    assert made.plan.splits == ()
    (made,) = plan_jobs([supposed], within(-0.1, job))
    assert made.plan.splits


def test_splits_found_before_are_taken_where_they_are_of_the_jobs_limit(job, planned, monkeypatch):
    device = within(0, job)
    auto = replace(job, policy="auto")
    want = planned("auto", 0)
    found = in_parts.find_splits(job.graph, device.memory_nbytes)
    monkeypatch.setattr(in_parts, "find_splits", None)
    (made,) = plan_jobs([replace(auto, found_splits=found)], device)
    assert made.plan == want.plan
    least = replace(found, least_nbytes=9)
    with pytest.raises(DoesNotFit) as refusal:
        plan_jobs([replace(auto, found_splits=least)], device)
    assert refusal.value.needed_nbytes == 9
    with pytest.raises(TypeError):
        plan_jobs([replace(auto, found_splits=replace(found, limit_nbytes=1))], device)


def test_auto_exact_is_refused_memory_in_which_bits_would_change(job):
    device = within(-0.7, job)
    (auto,) = plan_jobs([replace(job, policy="auto")], device)
    assert not keep_bits(packed_graph(job.graph, auto.plan.rewriting), auto.plan.splits)
    with pytest.raises(DoesNotFit):
        plan_jobs([replace(job, policy="auto_exact")], device)


def time_of(job, plan):
    return simulate_settled(job.graph, job.latencies_ns, plan, DEVICE)[1].period_ns


def test_below_that_bound_it_splits(job, planned):
    made = planned("auto_split", -0.1)
    check_by_replay(job, made, within(-0.1, job))
    assert made.plan.splits


def test_where_everything_fits_nothing_is_done(job):
    (made,) = plan_jobs([job], within(1, job))
    assert made.plan == replace(vanilla.plan_one(job.graph), policy="auto_split")


def test_splits_stay_when_latencies_or_memory_change(job, planned):
    first = planned("auto_split", 0)
    drifted = [latency_ns * (2 if number % 3 else 1) for number, latency_ns in enumerate(job.latencies_ns)]
    for latencies_ns, share in ((drifted, 0), (job.latencies_ns, 0.3), (drifted, 1)):
        again = replace(job, latencies_ns=latencies_ns, former=first.as_former)
        made = plan_and_replay(again, within(share, job))
        assert made.plan.splits == first.plan.splits
        assert made.budget_nbytes <= within(share, job).memory_nbytes


def test_splits_that_need_more_than_there_is_now_are_chosen_anew(job, planned):
    first = planned("auto_split", 0.2)
    less = within(-0.1, job)
    made = plan_and_replay(replace(job, former=first.as_former), less)
    # As if it were the first.
    assert made.plan == planned("auto_split", -0.1).plan
    assert made.budget_nbytes <= less.memory_nbytes
    assert made.plan.splits != first.plan.splits


def test_jobs_fit_together_and_equal_inputs_give_equal_plans(job):
    jobs = [replace(job, job_id=number) for number in (1, 2)]
    device = replace(DEVICE, memory_nbytes=3 * lower_bound_peak_nbytes(job.graph))
    made = plan_jobs(jobs, device)
    assert sum(each.budget_nbytes for each in made) <= device.memory_nbytes
    assert made[0].plan == made[1].plan == plan_jobs(jobs, device)[0].plan
