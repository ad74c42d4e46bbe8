"""Shares larger than plans need, for iterations that are taken down."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.graph import Phase
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.headroom import MOST_RECORDINGS, with_headroom
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tensile_db.worker.planning.planning_process import Planned, Question, answer
from tests.examples import examples
from tests.graphs.random_graphs import devices, latencies_for, training_graphs
from tests.late.runs import GIB, late_spec
from tests.steps import small_step as s

pytestmark = pytest.mark.usefixtures("little_effort")

#: What a recording of the small step holds: a page for what is small, a 64th of it, 52 MiB for libraries.
WHOLE_NBYTES = 2**21 + 2**15 + 52 * 2**20


@st.composite
def some_jobs(draw):
    graphs = draw(st.lists(training_graphs(4), min_size=1, max_size=3))
    return [
        JobRequest(job_id=number, graph=graph, latencies_ns=draw(latencies_for(graph)))
        for number, graph in enumerate(graphs)
    ]


@pytest.mark.slow
@examples(40)
@given(
    jobs=some_jobs(),
    machine=devices(),
    ease=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    concurrency=st.integers(1, 3),
    more_nbytes=st.sampled_from([0, 100 * 2**20, 250 * 2**20]),
)
def test_larger_shares_fit_the_memory_and_go_to_those_who_can_make_use_of_them(
    jobs, machine, ease, concurrency, more_nbytes
):
    least = max(lower_bound_peak_nbytes(job.graph) for job in jobs)
    ample = sum(vanilla.peak_nbytes(job.graph) for job in jobs)
    memory = int(least + ease * (ample - least)) + more_nbytes
    spec = replace(machine, memory_nbytes=memory, concurrency=concurrency)
    plans = plan_shared(jobs, spec)
    larger = with_headroom(plans, jobs, spec)
    assert needed_nbytes(plan.share for plan in larger) <= memory
    lanes = [plan.share.lane for plan in plans]
    for job, before, after in zip(jobs, plans, larger, strict=True):
        had, has = before.share, after.share
        more, recorded = has.ephemeral_nbytes - had.ephemeral_nbytes, has.recorded_nbytes
        assert replace(has, ephemeral_nbytes=had.ephemeral_nbytes, recorded_nbytes=0) == had
        is_alone = lanes.count(had.lane) == 1
        trains = any(op.phase is Phase.BACKWARD for op in job.graph.ops)
        assert more == 0 or (more > 0 and is_alone and trains and not recorded)
        # A whole iteration, or nothing.
        stays = 0 < had.resident_nbytes == before.job_plan.program.resident_nbytes
        assert recorded == 0 or (recorded > had.ephemeral_nbytes and stays and trains)
        event(("alone" if is_alone else "in turns") + (", more" if more else ", all" if recorded else ""))


def test_a_model_that_is_served_gets_nothing_beyond_its_plan():
    request = JobRequest(
        job_id=1, graph=s.small_step().graph, latencies_ns=[1] * len(s.small_step().graph.ops), unused_ns=0
    )
    question = Question(requests=(request,), device=late_spec(can_record=True))
    made = answer(question)
    assert isinstance(made, Planned)
    assert made.shares[0].budget_nbytes == made.plans[0].budget_nbytes


@pytest.mark.parametrize("repeats", [True, False])
@pytest.mark.parametrize("in_lane", [1, 2])
def test_a_job_that_goes_forward_has_room_to_replay_in_where_it_has_many_iterations(repeats, in_lane):
    graph = s.small_forward().graph
    jobs = tuple(
        JobRequest(job_id=job, graph=graph, latencies_ns=[10**6] * len(graph.ops), repeats=repeats)
        for job in range(in_lane)
    )
    made = answer(Question(requests=jobs, device=late_spec(can_record=True), sharing="fair"))
    assert isinstance(made, Planned)
    # No optimizer, and so nothing beside updates.
    assert [share.recorded_nbytes > 52 * 2**20 for share in made.shares] == in_lane * [repeats]
    assert all(repeats or share.budget_nbytes < 10_000 for share in made.shares)


def test_the_planner_gives_headroom_where_the_device_replays_and_nowhere_else():
    request = JobRequest(
        job_id=1, graph=s.small_step().graph, latencies_ns=[1] * len(s.small_step().graph.ops)
    )

    def beyond_nbytes(memory_nbytes, *, replays):
        device = replace(late_spec(can_record=replays), memory_nbytes=memory_nbytes)
        made = answer(Question(requests=(request,), device=device))
        assert isinstance(made, Planned)
        return made.shares[0].budget_nbytes - made.plans[0].budget_nbytes

    assert beyond_nbytes(GIB, replays=False) == 0
    # With room for both, a whole recording more; else less, for the plan's own peak is part of it.
    assert beyond_nbytes(GIB, replays=True) == WHOLE_NBYTES
    assert WHOLE_NBYTES - 10_000 <= beyond_nbytes(WHOLE_NBYTES + 2_000, replays=True) < WHOLE_NBYTES


@pytest.mark.parametrize("short_by_nbytes", [0, 1])
def test_within_a_limit_too_small_for_both_a_job_alone_has_what_a_replay_takes(short_by_nbytes):
    graph = s.small_step().graph
    peak_nbytes = vanilla.peak_nbytes(graph)
    request = JobRequest(
        job_id=1,
        graph=graph,
        latencies_ns=[1] * len(graph.ops),
        memory_limit_nbytes=peak_nbytes + WHOLE_NBYTES - short_by_nbytes,
    )
    made = answer(Question(requests=(request,), device=late_spec(can_record=True)))
    assert isinstance(made, Planned)
    (share,) = made.shares
    assert share.recorded_nbytes == (0 if short_by_nbytes else WHOLE_NBYTES)
    assert share.resident_nbytes + WHOLE_NBYTES <= share.budget_nbytes <= request.memory_limit_nbytes


def planned_in_lanes(*lanes):
    """Return jobs of the small step, their plans, in these lanes, and a device."""
    graph = s.small_step().graph
    jobs = [
        JobRequest(job_id=job, graph=graph, latencies_ns=[1] * len(graph.ops)) for job in range(len(lanes))
    ]
    device = replace(late_spec(can_record=True), memory_nbytes=GIB)
    plans = [
        replace(plan, share=replace(plan.share, lane=lane))
        for plan, lane in zip(plan_shared(jobs, device), lanes, strict=True)
    ]
    return jobs, plans, device


@pytest.mark.parametrize(("spare_nbytes", "alone_has_all"), [(0, True), (-1, False)])
def test_jobs_in_turns_get_theirs_before_one_alone_gets_more_than_a_replay_takes(spare_nbytes, alone_has_all):
    jobs, plans, device = planned_in_lanes(0, 1, 1)
    needed = needed_nbytes(plan.share for plan in plans)
    device = replace(device, memory_nbytes=needed + 3 * WHOLE_NBYTES + spare_nbytes)
    alone, *in_turns = (plan.share for plan in with_headroom(plans, jobs, device))
    assert [share.recorded_nbytes for share in in_turns] == 2 * [WHOLE_NBYTES]
    assert alone.recorded_nbytes == (WHOLE_NBYTES if alone_has_all else 0)
    assert alone.budget_nbytes >= alone.resident_nbytes + WHOLE_NBYTES


@pytest.mark.parametrize(("spare_nbytes", "have_all"), [(0, 2), (-1, 1)])
def test_what_one_alone_gets_is_not_given_to_the_next(spare_nbytes, have_all):
    jobs, plans, device = planned_in_lanes(0, 1)
    needed = needed_nbytes(plan.share for plan in plans)
    device = replace(device, memory_nbytes=needed + 2 * WHOLE_NBYTES + spare_nbytes)
    shares = [plan.share for plan in with_headroom(plans, jobs, device)]
    assert sum(share.recorded_nbytes > 0 for share in shares) == have_all
    assert needed_nbytes(shares) <= device.memory_nbytes


def test_one_alone_whose_state_leaves_between_turns_has_no_use_for_more_than_a_replay_takes():
    jobs, (plan,), device = planned_in_lanes(0)
    peak_nbytes = plan.share.budget_nbytes
    plan = replace(plan, share=replace(plan.share, resident_nbytes=0, ephemeral_nbytes=peak_nbytes))
    (larger,) = with_headroom([plan], jobs, device)
    assert larger.share.recorded_nbytes == 0
    assert larger.share.budget_nbytes >= WHOLE_NBYTES


@pytest.mark.parametrize(("memory_nbytes", "rooms"), [(10**6, 0), (100 * 2**20, 1), (GIB, 2)])
def test_jobs_in_turns_get_room_for_a_whole_iteration_each_as_far_as_there_is(memory_nbytes, rooms):
    graph = s.small_step().graph
    requests = [
        JobRequest(job_id=number, graph=graph, latencies_ns=[10**6] * len(graph.ops)) for number in (1, 2)
    ]
    device = replace(late_spec(can_record=True), memory_nbytes=memory_nbytes)
    made = answer(Question(requests=tuple(requests), device=device, sharing="fair"))
    assert isinstance(made, Planned)
    assert len({share.lane for share in made.shares}) == 1
    recorded = [share.recorded_nbytes for share in made.shares if share.recorded_nbytes]
    assert len(recorded) == rooms
    assert all(54 * 2**20 < nbytes < 55 * 2**20 for nbytes in recorded)
    assert needed_nbytes(made.shares) <= memory_nbytes


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("beyond_nbytes", "has_more"), [(1000, False), (55 * 2**20, True)])
def test_a_jobs_own_limit_holds_for_what_is_replayed_too(jobs, beyond_nbytes, has_more):
    graph = s.small_step().graph
    limit_nbytes = 2 * vanilla.peak_nbytes(graph) + beyond_nbytes
    requests = tuple(
        JobRequest(
            job_id=number,
            graph=graph,
            latencies_ns=[10**6] * len(graph.ops),
            memory_limit_nbytes=limit_nbytes,
        )
        for number in range(jobs)
    )
    made = answer(Question(requests=requests, device=late_spec(can_record=True), sharing="fair"))
    assert isinstance(made, Planned)
    assert all(share.budget_nbytes <= limit_nbytes for share in made.shares)
    more = [share.budget_nbytes > 54 * 2**20 for share in made.shares]
    assert more == jobs * [has_more]


def test_no_more_jobs_have_room_than_can_be_recorded_at_a_time():
    graph = s.small_step().graph
    requests = tuple(
        JobRequest(job_id=number, graph=graph, latencies_ns=[10**6] * len(graph.ops))
        for number in range(MOST_RECORDINGS + 2)
    )
    device = replace(late_spec(can_record=True), memory_nbytes=4 * GIB)
    made = answer(Question(requests=requests, device=device, sharing="fair"))
    assert isinstance(made, Planned)
    assert sum(share.recorded_nbytes > 0 for share in made.shares) == MOST_RECORDINGS


def test_trainings_have_room_before_what_goes_forward():
    jobs, plans, device = planned_in_lanes(0, 0)
    jobs[0] = replace(jobs[0], repeats=True)
    device = replace(device, memory_nbytes=needed_nbytes(plan.share for plan in plans) + WHOLE_NBYTES)
    shares = [plan.share for plan in with_headroom(plans, jobs, device)]
    assert [share.recorded_nbytes for share in shares] == [0, WHOLE_NBYTES]
