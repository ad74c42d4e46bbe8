"""Plans that leave the room in which their iterations are replayed."""

from dataclasses import replace

import pytest

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import has_choices_of
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing import growing_range, recordable, recorded_memory
from tensile_db.scheduler.sharing.headroom import MOST_RECORDINGS, is_recordable, with_headroom
from tensile_db.scheduler.sharing.improving import AsGood, improved
from tensile_db.scheduler.sharing.recordable import plan_recordable
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tests.examples import one_in
from tests.late.runs import GIB, late_spec
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    """Pages and libraries in proportion to small networks."""
    monkeypatch.setattr(growing_range, "SMALL_NBYTES", 0)
    monkeypatch.setattr(growing_range, "PAGE_NBYTES", 4096)
    monkeypatch.setattr(recorded_memory, "_LIBRARIES_NBYTES", 8192)


def graph_of(network):
    step, _ = capture_once(training_of(network, "momentum", 8))
    return step.graph


@pytest.fixture(scope="module")
def graph():
    return graph_of("vgg with dropout")


def job_of(graph, share, *, job=1, latency_ns=1000, policy="auto"):
    """Return a job that may hold a share of what eager PyTorch does; None: as much as it likes."""
    return JobRequest(
        job_id=job,
        graph=graph,
        latencies_ns=[latency_ns] * len(graph.ops),
        memory_limit_nbytes=None if share is None else int(share * vanilla.peak_nbytes(graph)),
        policy=policy,
    )


def has_room(plan, job):
    made = plan.job_plan
    return is_recordable(plan.share, planned_graph(job.graph, made.plan), made.program, spec())


def spec(memory_nbytes=GIB, concurrency=1):
    return replace(late_spec(can_record=True, memory_nbytes=memory_nbytes), concurrency=concurrency)


def test_a_job_within_a_limit_gets_a_plan_for_less_and_room_to_be_replayed(graph):
    job = job_of(graph, 0.8)
    (plain,) = with_headroom(plan_shared([job], spec()), [job], spec())
    assert not has_room(plain, job)
    (plan,) = plan_recordable([job], spec())
    assert has_room(plan, job)
    # What a recording will hold is estimated.
    assert plan.share.budget_nbytes == plain.share.budget_nbytes <= job.memory_limit_nbytes
    assert plan.job_plan.budget_nbytes < plain.job_plan.budget_nbytes
    assert plan.job_plan.budget_nbytes < plan.share.budget_nbytes <= job.memory_limit_nbytes


def test_on_a_full_device_a_job_without_a_limit_gets_room_to_be_replayed(graph):
    job = job_of(graph, None)
    memory_nbytes = int(0.8 * vanilla.peak_nbytes(graph))
    (plan,) = plan_recordable([job], spec(memory_nbytes))
    assert has_room(plan, job)
    assert needed_nbytes([plan.share]) <= memory_nbytes


def test_a_job_with_room_has_the_plan_that_it_has_elsewhere(graph):
    job = job_of(graph, None)
    (plan,), (plain,) = plan_recordable([job], spec()), plan_shared([job], spec())
    assert has_room(plan, job)
    assert plan.job_plan.plan == plain.job_plan.plan


def test_where_the_host_is_ahead_anyway_no_time_is_given_for_it(graph, monkeypatch):
    monkeypatch.setattr(recordable, "_HAND_OVER_NS", 0)
    job = job_of(graph, 0.8)
    (plan,) = plan_recordable([job], spec())
    assert plan.job_plan.plan == plan_shared([job], spec())[0].job_plan.plan


def test_a_limit_that_only_just_suffices_is_kept_to_op_by_op(graph):
    with pytest.raises(DoesNotFit) as refusal:
        plan_shared([job_of(graph, 0.01)], spec())
    job = replace(job_of(graph, None), memory_limit_nbytes=refusal.value.needed_nbytes)
    (plan,), (plain,) = plan_recordable([job], spec()), plan_shared([job], spec())
    assert plan.job_plan.plan == plain.job_plan.plan
    assert plan.share.budget_nbytes == job.memory_limit_nbytes
    assert not has_room(plan, job)


@pytest.mark.parametrize(
    ("share", "latency_ns"), one_in(3, [(0.5, 1000), (0.87, 1000), (0.87, 100_000), (0.5, 100_000)])
)
def test_what_is_split_depends_neither_on_replaying_nor_on_latencies(share, latency_ns):
    job = job_of(graph_of("transformer"), share, latency_ns=latency_ns)
    (plan,), (plain,) = plan_recordable([job], spec()), plan_shared([job], spec())
    assert plan.job_plan.plan.splits == plain.job_plan.plan.splits
    running = replace(job, former=plain.job_plan.as_former)
    (again,) = plan_recordable([running], spec())
    assert again.job_plan.plan.splits == plain.job_plan.plan.splits


@pytest.mark.parametrize("network", ["resnet", "vgg with dropout"])
def test_a_running_job_gets_room_as_well_as_one_that_begins_and_keeps_the_plan_that_leaves_it(network):
    job = job_of(graph_of(network), 0.8)
    (plain,) = plan_shared([job], spec())
    (plan,) = plan_recordable([replace(job, former=plain.job_plan.as_former)], spec())
    assert has_room(plan, job)
    running = replace(job, former=plan.job_plan.as_former)
    (kept,) = plan_recordable([running], spec(), in_force=[plan.within])
    assert has_choices_of(kept.job_plan.plan, plan.job_plan.plan)
    assert kept.share == plan.share


@pytest.mark.parametrize("network", ["resnet", "vgg with dropout"])
def test_what_is_replayed_is_replayed_by_a_better_plan_too(network):
    job = job_of(graph_of(network), 0.8)
    (quick,) = plan_recordable([job], spec(), at_once=True)
    assert has_room(quick, job)
    running = replace(job, former=replace(quick.job_plan.as_former, quick=True))
    found = improved(running, quick.within, quick.share)
    if isinstance(found, AsGood):
        assert found.within_nbytes == quick.job_plan.budget_nbytes
    else:
        assert has_room(found, job)
        assert found.share.budget_nbytes == quick.share.budget_nbytes
        assert found.job_plan.prediction.time_ns < quick.job_plan.prediction.time_ns


def test_who_can_have_no_room_keeps_nobody_else_from_it(graph):
    least = job_of(graph, 1.0, job=2, policy="vanilla")
    tight = job_of(graph, 0.8, job=1)
    both = plan_recordable([tight, least], spec(concurrency=64), "pack")
    assert len({plan.share.lane for plan in both}) == 2
    assert [has_room(plan, job) for plan, job in zip(both, (tight, least), strict=True)] == [True, False]
    assert needed_nbytes(plan.share for plan in both) <= GIB


def test_who_cannot_be_replayed_takes_no_place_of_those_who_can():
    graph = graph_of("mlp")
    full = [job_of(graph, 1.0, job=number, policy="vanilla") for number in range(MOST_RECORDINGS)]
    jobs = [*full, job_of(graph, None, job=MOST_RECORDINGS)]
    plans = plan_recordable(jobs, spec(concurrency=64), "pack")
    assert [has_room(plan, job) for plan, job in zip(plans, jobs, strict=True)] == 8 * [False] + [True]


def test_a_plan_made_with_care_that_leaves_no_room_gives_way_to_the_quick_one(graph, monkeypatch):
    job = job_of(graph, 0.8)
    real = recordable.plan_granted

    def granted(job, grant, device, made):
        if not job.at_once:
            grant = replace(grant, budget_nbytes=job.memory_limit_nbytes)
        return real(job, grant, device, made)

    monkeypatch.setattr(recordable, "plan_granted", granted)
    (plan,) = plan_recordable([job], spec())
    assert has_room(plan, job)
    assert plan.job_plan.quick


def test_a_device_that_replays_nothing_gives_no_room(graph):
    job, device = job_of(graph, 0.8), replace(spec(), replays=False)
    (plan,), (plain,) = plan_recordable([job], device), plan_shared([job], device)
    assert (plan.job_plan.plan, plan.share) == (plain.job_plan.plan, plain.share)
