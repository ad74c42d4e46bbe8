"""Plans that somebody waits for: made at once, verified, and improved afterwards."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Phase, Role
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing import beginnings
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing import shared_plans
from tensile_db.scheduler.sharing.arrivals import plan_arrivals
from tensile_db.scheduler.sharing.improving import improved
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tests.examples import examples, one_in
from tests.fixtures.drafts import DEVICE, job_of, within
from tests.graphs.hand_made import device_of, graph_of
from tests.graphs.random_graphs import devices, latencies_for, training_graphs
from tests.plans.replayed_plans import plan_and_replay
from tests.steps.captured_steps import SMALL, captured_step

pytestmark = pytest.mark.usefixtures("little_effort")


@pytest.mark.slow
@given(st.data())
@examples(60)
def test_a_first_plan_made_at_once_is_within_the_budget_and_replays_as_predicted(data):
    graph, device = data.draw(training_graphs()), data.draw(devices())
    job = JobRequest(
        job_id=1,
        graph=graph,
        latencies_ns=data.draw(latencies_for(graph)),
        at_once=True,
        in_haste=data.draw(st.booleans()),
    )
    budget = data.draw(st.integers(lower_bound_peak_nbytes(graph), vanilla.peak_nbytes(graph)))
    device = replace(device, memory_nbytes=budget)
    made = plan_and_replay(job, device)
    assert made.budget_nbytes <= budget
    (same,) = plan_jobs([job], device)
    assert (same.plan, same.quick) == (made.plan, made.quick)
    event("quick" if made.quick else "as fast as the ops")
    improving = replace(job, former=made.as_former, improving=True)
    better = plan_and_replay(improving, device)
    assert better.budget_nbytes <= budget
    assert better.prediction.time_ns <= made.prediction.time_ns
    assert not better.quick
    event("made better" if better.plan != made.plan else "as good")


@pytest.fixture(scope="module")
def graph():
    return captured_step("test_resnet", batch=32, side=96, optimizer="momentum")


@pytest.mark.slow
def test_at_once_choices_are_made_once_and_hardly_worse_than_with_care(graph, drafts):
    device = within(graph, 0.6)
    # What is split is known from now on.
    (with_care,) = plan_jobs([job_of(graph)], device)
    drafts.clear()
    (quick,) = plan_jobs([job_of(graph, at_once=True)], device)
    assert len(drafts) == 1
    assert (quick.quick, with_care.quick) == (True, False)
    assert quick.prediction.time_ns <= 1.1 * with_care.prediction.time_ns


@pytest.mark.slow
def test_a_job_that_ran_as_eager_pytorch_does_is_planned_as_quickly(graph, drafts):
    (eager,) = plan_jobs([job_of(graph)], within(graph, 1.0))
    (first,) = plan_jobs([job_of(graph, at_once=True)], within(graph, 0.8))
    drafts.clear()
    (again,) = plan_jobs([job_of(graph, former=eager.as_former)], within(graph, 0.8))
    assert len(drafts) == 1
    assert again.plan == first.plan


@pytest.mark.slow
@pytest.mark.parametrize("policy", one_in(2, ["auto", "auto_split"]))
def test_what_is_split_does_not_depend_on_who_waits(policy):
    graph = captured_step(SMALL, batch=16, side=96)
    device = replace(DEVICE, memory_nbytes=lower_bound_peak_nbytes(graph))
    job = job_of(graph, policy=policy)
    plans = [plan_jobs([each], device)[0].plan for each in (job, replace(job, at_once=True))]
    assert plans[0].splits == plans[1].splits != ()


@pytest.fixture(scope="module")
def arrived(graph):
    """A device, a job that had it to itself, and another one like it, which arrives."""
    device = within(graph, 0.9)
    (before,) = plan_shared([job_of(graph)], device)
    jobs = [job_of(graph, former=before.job_plan.as_former), job_of(graph, number=2)]
    return device, jobs, before


@pytest.mark.slow
def test_a_newcomer_is_planned_for_what_the_others_leave_and_nobody_else_is(arrived, monkeypatch):
    device, jobs, before = arrived
    planned = []
    plan_one = shared_plans.plan_jobs
    monkeypatch.setattr(
        shared_plans, "plan_jobs", lambda jobs, *within: planned.extend(jobs) or plan_one(jobs, *within)
    )
    (newcomer,) = plan_arrivals(jobs, device, "auto", [before.share, None])
    assert [job.job_id for job in planned] == [2]
    assert newcomer.job_plan.job_id == 2
    assert newcomer.share.lane == before.share.lane
    assert newcomer.job_plan.budget_nbytes <= newcomer.share.budget_nbytes
    assert needed_nbytes([before.share, newcomer.share]) <= device.memory_nbytes
    (same,) = plan_arrivals(jobs, device, "auto", [before.share, None])
    assert (same.job_plan.plan, same.share) == (newcomer.job_plan.plan, newcomer.share)


@pytest.mark.slow
def test_only_a_newcomer_among_others_is_planned_in_haste(arrived, monkeypatch):
    device, jobs, before = arrived
    hasty = {}
    plan_one = shared_plans.plan_jobs

    def noted(jobs, *within):
        hasty.update((job.job_id, job.in_haste) for job in jobs)
        return plan_one(jobs, *within)

    monkeypatch.setattr(shared_plans, "plan_jobs", noted)
    plan_arrivals(jobs, device, "auto", [before.share, None])
    assert hasty == {2: True}
    hasty.clear()
    plan_shared(jobs, device, at_once=True)
    assert hasty == {1: False, 2: True}
    hasty.clear()
    plan_shared(jobs[1:], device, at_once=True)
    assert hasty == {2: False}
    plan_shared([job_of(jobs[0].graph), jobs[1]], device)
    assert hasty == {1: False, 2: False}


@pytest.mark.slow
def test_plans_made_again_know_what_may_be_recomputed_also_where_the_first_was_made_in_haste(
    graph, monkeypatch
):
    asked = job_of(graph, at_once=True, in_haste=True)
    (made,) = plan_jobs([asked], within(graph, 0.6))
    assert made.plan.in_haste

    def refuse(*_, **__):
        raise AssertionError("it was found for the first plan")

    monkeypatch.setattr(beginnings, "find_candidates", refuse)
    (again,) = plan_jobs([job_of(graph, former=made.as_former)], within(graph, 0.55))
    assert again.plan.in_haste
    assert again.plan != made.plan
    monkeypatch.undo()
    better = job_of(graph, former=again.as_former, improving=True)
    (found,) = plan_jobs([better], within(graph, 0.55))
    assert not found.plan.in_haste


def test_a_newcomer_does_not_do_with_less_for_the_sake_of_room_to_replay_in(arrived):
    device, jobs, before = arrived
    replayed = replace(before.share, recorded_nbytes=1000)
    larger = replace(device, memory_nbytes=device.memory_nbytes + 1000)
    assert plan_arrivals(jobs, larger, "auto", [before.share, None]) is not None
    # All are planned then, and that room is counted as free.
    assert plan_arrivals(jobs, larger, "auto", [replayed, None]) is None


@pytest.mark.slow
def test_lanes_are_chosen_for_all_of_them_afterwards_and_plans_are_made_better(arrived):
    device, jobs, before = arrived
    (newcomer,) = plan_arrivals(jobs, device, "auto", [before.share, None])
    assert newcomer.within.quick
    running = [jobs[0], replace(jobs[1], former=newcomer.job_plan.as_former)]
    in_force = [before.within, newcomer.within]
    first, second = plan_shared(running, device, in_force=in_force)
    assert needed_nbytes([first.share, second.share]) <= device.memory_nbytes
    assert first.within.among == second.within.among == (1, 2)
    assert (first.within.quick, second.within.quick) == (False, False)
    # Now the first one makes do with less, too.
    assert first.share.budget_nbytes < before.share.budget_nbytes
    quick = next(each for each in (first, second) if each.job_plan.quick)
    asked = job_of(jobs[0].graph, number=quick.job_plan.job_id, former=quick.job_plan.as_former)
    better = improved(asked, quick.within, quick.share)
    assert better.job_plan.prediction.time_ns < quick.job_plan.prediction.time_ns


def test_several_newcomers_fit_beside_each_other(arrived):
    device, jobs, before = arrived
    jobs = [*jobs, replace(jobs[1], job_id=3)]
    made = plan_arrivals(jobs, device, "auto", [before.share, None, None])
    assert [plan.job_plan.job_id for plan in made] == [2, 3]
    assert needed_nbytes([before.share, *(plan.share for plan in made)]) <= device.memory_nbytes


def test_all_are_planned_where_nobody_runs(arrived):
    device, jobs, _ = arrived
    assert plan_arrivals(jobs, device, "auto", [None, None]) is None


def test_all_are_planned_where_those_that_run_keep_their_plans_anyway(arrived):
    device, jobs, before = arrived
    device = replace(device, memory_nbytes=2 * device.memory_nbytes)
    assert plan_arrivals(jobs, device, "auto", [before.share, None]) is None


def test_all_are_planned_where_those_that_run_leave_too_little(arrived):
    device, jobs, before = arrived
    little = replace(before.share, ephemeral_nbytes=lower_bound_peak_nbytes(jobs[0].graph))
    device = replace(device, memory_nbytes=needed_nbytes([little]))
    assert plan_arrivals(jobs, device, "auto", [little, None]) is None


def test_all_are_planned_where_a_model_is_served(arrived):
    device, jobs, before = arrived
    jobs = [jobs[0], replace(jobs[1], unused_ns=0)]
    assert plan_arrivals(jobs, device, "auto", [before.share, None]) is None


@pytest.mark.parametrize("sharing", ["pack", "fifo"])
def test_all_are_planned_where_jobs_do_not_take_turns_in_lanes(arrived, sharing):
    device, jobs, before = arrived
    assert plan_arrivals(jobs, device, sharing, [before.share, None]) is None


@pytest.mark.slow
def test_where_all_are_planned_at_once_no_other_lanes_are_tried(arrived, monkeypatch):
    device, jobs, _ = arrived
    device = replace(device, memory_nbytes=device.memory_nbytes // 2)
    lanes = []
    planned = shared_plans._planned
    monkeypatch.setattr(
        shared_plans, "_planned", lambda *args, **more: lanes.append(args[2]) or planned(*args, **more)
    )
    monkeypatch.setattr(shared_plans, "_leaving_by_plan", lambda *args: lanes.append("by plan"))
    quick = plan_shared(jobs, device, at_once=True)
    assert "by plan" not in lanes
    assert all(plan.within.quick for plan in quick)
    assert needed_nbytes(plan.share for plan in quick) <= device.memory_nbytes
    lanes.clear()
    again = [replace(job, former=plan.job_plan.as_former) for job, plan in zip(jobs, quick, strict=True)]
    with_care = plan_shared(again, device, in_force=[plan.within for plan in quick])
    assert "by plan" in lanes
    assert not any(plan.within.quick for plan in with_care)


def _with_much_state():
    """Return a step of five layers: of eager's peak, half is the state, of which each op needs little."""
    layers = range(5)
    activations, gradients = [10 + i for i in layers], [15 + i for i in layers]
    tensors = [(100, Role.PARAMETER)] * 5 + [(100, Role.OPTIMIZER_STATE)] * 5
    tensors += [(200, Role.ACTIVATION)] * 5 + [(10, Role.GRADIENT)] * 5 + [(10, Role.INPUT)]
    inputs = [20, *activations]
    ops = [("tensile.load_batch", Phase.FORWARD, [], [20], False)]
    ops += [("layer", Phase.FORWARD, [i, inputs[i]], [activations[i]], True) for i in layers]
    ops += [
        ("layer_backward", Phase.BACKWARD, [i, activations[i]], [gradients[i]], True)
        for i in reversed(layers)
    ]
    ops += [("update", Phase.OPTIMIZER, [i, 5 + i, gradients[i]], [i, 5 + i], False) for i in layers]
    ops.append(("tensile.report", Phase.OPTIMIZER, [20], [], False))
    return graph_of(tensors, ops)


def test_all_are_planned_where_a_newcomers_policy_needs_more_than_the_others_leave():
    graph = _with_much_state()
    device = device_of(vanilla.peak_nbytes(graph))
    job = JobRequest(job_id=1, graph=graph, latencies_ns=[1000] * len(graph.ops))
    (before,) = plan_shared([job], device)
    running = replace(job, former=before.job_plan.as_former)
    shares = [before.share, None]
    auto, capuchin = (replace(job, job_id=2, policy=policy) for policy in ("auto", "capuchin"))
    # Capuchin keeps the state on the device.
    assert plan_arrivals([running, auto], device, "auto", shares) is not None
    assert plan_arrivals([running, capuchin], device, "auto", shares) is None
    plans = plan_shared([running, capuchin], device, at_once=True)
    assert needed_nbytes(plan.share for plan in plans) <= device.memory_nbytes
