"""A re-plan begins with the plan in force: judged by the replay, and against first plans."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import SwapIn, SwapOut, has_choices_of
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.drafts import Drafter
from tensile_db.scheduler.request import JobRequest
from tests.examples import examples, one_in
from tests.fixtures.drafts import DEVICE, job_of, within
from tests.graphs.random_graphs import devices, latencies_for, training_graphs
from tests.plans.replayed_plans import plan_and_replay
from tests.steps.captured_steps import captured_step
from tests.steps.small_step import small_step

pytestmark = pytest.mark.usefixtures("little_effort")


@pytest.mark.slow
@given(st.data())
@examples(40)
def test_a_plan_made_again_is_within_the_budget_and_replays_as_predicted(data):
    graph, device = data.draw(training_graphs()), data.draw(devices())
    job = JobRequest(job_id=1, graph=graph, latencies_ns=data.draw(latencies_for(graph)))
    budgets = st.integers(lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph))
    first, then = data.draw(budgets), data.draw(budgets)
    (former,) = plan_jobs([job], replace(device, memory_nbytes=first))
    again = replace(job, latencies_ns=data.draw(latencies_for(graph)), former=former.as_former)
    made = plan_and_replay(again, replace(device, memory_nbytes=then))
    event("kept" if has_choices_of(made.plan, former.plan) else "chosen anew")
    assert made.budget_nbytes <= then
    (same,) = plan_jobs([again], replace(device, memory_nbytes=then))
    assert same.plan == made.plan
    event("quick" if made.quick else "not quick")
    improving = replace(again, former=made.as_former, improving=True)
    better = plan_and_replay(improving, replace(device, memory_nbytes=then))
    event("as good" if has_choices_of(better.plan, made.plan) else "better")
    assert better.budget_nbytes <= then
    assert better.prediction.time_ns <= made.prediction.time_ns
    assert not better.quick
    (same,) = plan_jobs([improving], replace(device, memory_nbytes=then))
    assert same.plan == better.plan


def test_a_plan_of_another_graph_is_nothing_to_begin_with():
    small = small_step().graph
    job = JobRequest(job_id=1, graph=small, latencies_ns=[1000] * len(small.ops))
    tight = replace(DEVICE, memory_nbytes=lower_bound_peak_nbytes(small))
    (first,) = plan_jobs([job], tight)
    strange = replace(first.as_former, plan=replace(first.plan, order=first.plan.order[:-1]))
    (made,) = plan_jobs([replace(job, former=strange)], tight)
    assert made.plan == first.plan


@pytest.fixture(scope="module")
def graph():
    return captured_step("test_resnet", batch=32, side=96)


@pytest.mark.slow
def test_after_a_small_drift_the_choices_stay_and_none_are_made(graph, drafts):
    (former,) = plan_jobs([job_of(graph)], within(graph, 0.65))
    assert any(isinstance(one, SwapOut) for one in former.plan.events)
    drafts.clear()
    (made,) = plan_jobs([replace(job_of(graph, times=1.05), former=former.as_former)], within(graph, 0.65))
    assert has_choices_of(made.plan, former.plan)
    assert not drafts


@pytest.mark.slow
def test_where_nothing_has_changed_the_plan_stays_and_is_timed_no_more(graph, monkeypatch):
    (former,) = plan_jobs([job_of(graph)], within(graph, 0.65))
    assert any(isinstance(one, SwapIn) and one.delta_ns for one in former.plan.events)
    again = replace(job_of(graph), former=former.as_former)
    with monkeypatch.context() as patch:
        patch.setattr(Drafter, "kept", lambda *_: pytest.fail("its copies are timed anew"))
        (made,) = plan_jobs([again], within(graph, 0.65))
    assert made.plan == former.plan
    slower = replace(within(graph, 0.65), h2d_bytes_per_s=DEVICE.h2d_bytes_per_s // 2)
    (made,) = plan_jobs([again], slower)
    assert made.plan != former.plan


def test_a_plan_kept_again_and_again_is_still_measured_by_its_first_time(graph):
    (made,) = plan_jobs([job_of(graph)], within(graph, 0.65))
    first = made.as_former
    for times in (1.02, 1.04, 1.06):
        (made,) = plan_jobs([replace(job_of(graph, times=times), former=made.as_former)], within(graph, 0.65))
    assert has_choices_of(made.plan, first.plan)
    assert made.as_former.eor == first.eor


@pytest.mark.slow
@pytest.mark.parametrize("share", one_in(2, [0.6, 0.44]))
def test_for_another_budget_choices_are_made_once_in_the_order_in_force(graph, drafts, share):
    (former,) = plan_jobs([job_of(graph)], within(graph, 0.5))
    drafts.clear()
    (made,) = plan_jobs([replace(job_of(graph), former=former.as_former)], within(graph, share))
    assert len(drafts) == 1
    assert made.plan.order == former.plan.order
    # For less memory it may have been searched for, and a search is still to come.
    assert made.quick == (share < 0.5)
    (fresh,) = plan_jobs([job_of(graph)], within(graph, share))
    assert made.prediction.time_ns <= 1.05 * fresh.prediction.time_ns


@pytest.mark.thorough
def test_where_that_is_much_slower_than_before_the_plan_says_so_and_a_better_one_is_found(graph, drafts):
    eager_nbytes = vanilla.peak_nbytes(graph)
    (former,) = plan_jobs([job_of(graph)], DEVICE, int(0.6 * eager_nbytes))
    less_nbytes = int(0.38 * eager_nbytes)
    (fresh,) = plan_jobs([job_of(graph)], DEVICE, less_nbytes)
    drafts.clear()
    (quick,) = plan_jobs([replace(job_of(graph), former=former.as_former)], DEVICE, less_nbytes)
    assert len(drafts) == 1
    assert (former.quick, quick.quick) == (False, True)
    improving = replace(job_of(graph), former=quick.as_former, improving=True)
    (better,) = plan_jobs([improving], DEVICE, less_nbytes)
    assert better.plan == fresh.plan
    assert better.prediction.time_ns <= 0.9 * quick.prediction.time_ns
    assert not better.quick


@pytest.mark.slow
def test_a_quick_plan_that_stays_is_still_quick_until_a_better_one_was_looked_for(graph, drafts):
    (first,) = plan_jobs([job_of(graph)], within(graph, 0.6))
    job = replace(job_of(graph), former=replace(first.as_former, quick=True))
    (kept,) = plan_jobs([job], within(graph, 0.6))
    assert kept.quick
    drafts.clear()
    (looked,) = plan_jobs([replace(job, former=kept.as_former, improving=True)], within(graph, 0.6))
    assert drafts
    assert has_choices_of(looked.plan, first.plan)
    assert not looked.quick


def test_plans_that_differ_in_delays_alone_have_the_same_choices():
    plan = vanilla.plan_one(small_step().graph)
    out = SwapOut(tensor=1, trigger_op=3, delta_ns=5)
    one = replace(plan, events=(out, *plan.events))
    later = replace(one, events=(replace(out, delta_ns=7), *plan.events))
    back = replace(one, events=(SwapIn(tensor=1, trigger_op=3, delta_ns=5), *plan.events))
    assert has_choices_of(one, later)
    assert not has_choices_of(one, back)
    assert not has_choices_of(one, plan)
