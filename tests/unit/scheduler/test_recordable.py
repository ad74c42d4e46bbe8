"""Plans that leave the room in which their iterations are replayed."""

from dataclasses import replace

import pytest

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing import growing_range, headroom, recordable
from tensile_db.scheduler.sharing.headroom import is_recordable, with_headroom
from tensile_db.scheduler.sharing.recordable import plan_recordable
from tensile_db.scheduler.sharing.share import needed_nbytes
from tensile_db.scheduler.sharing.shared_plans import plan_shared
from tests.bitwise_runs import capture_once
from tests.late_runs import GIB, open_late
from tests.small_networks import training_of

pytestmark = pytest.mark.usefixtures("little_effort")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    """Pages and libraries in proportion to small networks."""
    monkeypatch.setattr(growing_range, "_SMALL_NBYTES", 0)
    monkeypatch.setattr(growing_range, "_PAGE_NBYTES", 4096)
    monkeypatch.setattr(headroom, "_LIBRARIES_NBYTES", 8192)


@pytest.fixture(scope="module")
def graph():
    step, _ = capture_once(training_of("vgg with dropout", "momentum", 8))
    return step.graph


def job_of(graph, share, *, latency_ns=1000):
    """Return a job that may hold a share of what eager PyTorch does; None: as much as it likes."""
    return JobRequest(
        job_id=1,
        graph=graph,
        latencies_ns=[latency_ns] * len(graph.ops),
        memory_limit_nbytes=None if share is None else int(share * vanilla.peak_nbytes(graph)),
    )


def spec(memory_nbytes=GIB):
    _, device = open_late("lazy", can_record=True, memory_nbytes=memory_nbytes)
    device.close()
    return device.spec


def test_a_job_within_a_limit_gets_a_plan_for_less_and_room_to_be_replayed(graph):
    job = job_of(graph, 0.8)
    (plain,) = with_headroom(plan_shared([job], spec()), [job], spec())
    assert not is_recordable(plain, job)
    (plan,) = plan_recordable([job], spec())
    assert is_recordable(plan, job)
    assert plan.job_plan.budget_nbytes < plain.job_plan.budget_nbytes
    assert plan.job_plan.budget_nbytes < plan.share.budget_nbytes <= job.memory_limit_nbytes


def test_on_a_device_that_is_full_too(graph):
    job = job_of(graph, None)
    memory_nbytes = int(0.8 * vanilla.peak_nbytes(graph))
    (plan,) = plan_recordable([job], spec(memory_nbytes))
    assert is_recordable(plan, job)
    assert needed_nbytes([plan.share]) <= memory_nbytes


def test_a_job_with_room_has_the_plan_that_it_has_elsewhere(graph):
    job = job_of(graph, None)
    (plan,), (plain,) = plan_recordable([job], spec()), plan_shared([job], spec())
    assert is_recordable(plan, job)
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
    assert not is_recordable(plan, job)
