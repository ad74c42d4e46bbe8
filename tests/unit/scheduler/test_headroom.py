"""Shares larger than plans need, for iterations that are taken down."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.headroom import places_kept_nbytes, with_headroom
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tensile_db.worker.planning.planning_process import Planned, Question, answer
from tests import small_step as s
from tests.examples import examples
from tests.late_runs import open_late
from tests.random_graphs import devices, latencies_for, training_graphs
from tests.small_runs import swapping_program

pytestmark = pytest.mark.usefixtures("little_effort")


@st.composite
def some_jobs(draw):
    graphs = draw(st.lists(training_graphs(4), min_size=1, max_size=3))
    return [
        JobRequest(job_id=number, graph=graph, latencies_ns=draw(latencies_for(graph)))
        for number, graph in enumerate(graphs)
    ]


@examples(40)
@given(
    jobs=some_jobs(),
    machine=devices(),
    ease=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    concurrency=st.integers(1, 3),
    more_nbytes=st.sampled_from([0, 100 * 2**20]),
)
def test_larger_shares_fit_the_memory_and_only_jobs_alone_in_their_lanes_have_them(
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
    for before, after in zip(plans, larger, strict=True):
        more = after.share.ephemeral_nbytes - before.share.ephemeral_nbytes
        assert replace(after.share, ephemeral_nbytes=before.share.ephemeral_nbytes) == before.share
        assert more == 0 or (more > 0 and lanes.count(before.share.lane) == 1)
        event("more" if more else "as before")


def test_a_model_that_is_served_gets_nothing_beyond_its_plan():
    request = JobRequest(
        job_id=1, graph=s.small_step().graph, latencies_ns=[1] * len(s.small_step().graph.ops), unused_ns=0
    )
    question = Question(requests=(request,), device=machine(replays=True))
    made = answer(question)
    assert isinstance(made, Planned)
    assert made.shares[0].budget_nbytes == made.plans[0].budget_nbytes


def test_the_planner_gives_headroom_where_the_device_replays_and_nowhere_else():
    request = JobRequest(
        job_id=1, graph=s.small_step().graph, latencies_ns=[1] * len(s.small_step().graph.ops)
    )
    budgets = {}
    for replays in (False, True):
        made = answer(Question(requests=(request,), device=machine(replays=replays)))
        assert isinstance(made, Planned)
        budgets[replays] = made.shares[0].budget_nbytes - made.plans[0].budget_nbytes
    assert budgets[False] == 0
    # 96 MiB for pieces and updates, and an eighth for gaps; its plan for a large device moves nothing.
    assert 96 * 2**20 <= budgets[True] < 96 * 2**20 + 1000


def test_places_are_kept_by_tensors_that_begin_on_the_device_and_leave():
    step = s.small_step()
    # w1 leaves; momentum begins on the host; h is an activation.
    assert places_kept_nbytes(step.graph, swapping_program(step)) == 4 * s.WIDTH * s.HIDDEN
    assert places_kept_nbytes(step.graph, s.plain_program(step)) == 0


def machine(*, replays):
    return open_late("lazy", can_record=replays)[1].spec
