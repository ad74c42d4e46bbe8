"""What recordings hold, steered and not."""

from dataclasses import replace

import pytest

from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.sharing import growing_range, recorded_memory
from tensile_db.scheduler.sharing.addresses import is_large
from tensile_db.scheduler.sharing.growing_range import alive_nbytes, asked_for
from tensile_db.scheduler.sharing.headroom import held_nbytes
from tensile_db.scheduler.sharing.recordable import plan_recordable
from tensile_db.scheduler.sharing.recorded_memory import recorded_memory as memory_of
from tests.examples import one_in
from tests.late.runs import GIB, late_spec
from tests.steps.bitwise_runs import capture_once
from tests.steps.small_networks import training_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("little_effort")]

NETWORKS = ("vgg with dropout", "resnet", "densenet")


@pytest.fixture(autouse=True)
def small_pages(monkeypatch):
    """Pages and libraries in proportion to small networks."""
    monkeypatch.setattr(growing_range, "SMALL_NBYTES", 512)
    monkeypatch.setattr(growing_range, "_SMALL_PAGE_NBYTES", 4096)
    monkeypatch.setattr(growing_range, "PAGE_NBYTES", 4096)
    monkeypatch.setattr(recorded_memory, "_LIBRARIES_NBYTES", 8192)


def job_of(network, share):
    step, _ = capture_once(training_of(network, "momentum", 8))
    return JobRequest(
        job_id=1,
        graph=step.graph,
        latencies_ns=[1000] * len(step.graph.ops),
        memory_limit_nbytes=int(share * vanilla.peak_nbytes(step.graph)),
    )


def device(*, steers):
    return replace(late_spec(can_record=True, memory_nbytes=GIB), steers=steers)


@pytest.fixture(params=one_in(3, NETWORKS))
def planned(request):
    job = job_of(request.param, 0.6)
    (plan,) = plan_jobs([job], device(steers=False))
    return planned_graph(job.graph, plan.plan), plan.program


def test_steered_less_is_held_but_no_less_than_what_is_alive(planned):
    graph, program = planned
    left, steered = (memory_of(graph, program, steers=steers) for steers in (False, True))
    assert left.steered is None
    assert alive_nbytes(graph, program) < steered.nbytes < left.nbytes
    large = [each for each in asked_for(graph, program) if each.takes and is_large(each.nbytes)]
    assert len(steered.steered.addresses) == len(large)
    for address, each in zip(steered.steered.addresses, large, strict=True):
        assert 0 <= address <= steered.steered.nbytes - each.nbytes
    # With the same for what nobody knows of.
    assert steered.steered.nbytes + 8192 <= steered.nbytes


def test_where_there_is_room_nothing_is_steered(planned):
    graph, program = planned
    left = memory_of(graph, program, steers=False)
    assert memory_of(graph, program, steers=True, room_nbytes=left.nbytes) == left
    assert memory_of(graph, program, steers=True, room_nbytes=left.nbytes - 1).steered is not None


def test_where_it_saves_nothing_nothing_is_steered(planned, monkeypatch):
    graph, program = planned
    # All comes from the range of small tensors, in which nothing is chosen.
    monkeypatch.setattr(growing_range, "SMALL_NBYTES", GIB)
    assert memory_of(graph, program, steers=True) == memory_of(graph, program, steers=False)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_job_within_a_limit_gets_a_plan_for_more_memory_where_recordings_hold_less(network):
    job = job_of(network, 0.8)
    budgets = {}
    for steers in (False, True):
        (made,) = plan_recordable([job], device(steers=steers))
        assert made.share.budget_nbytes <= job.memory_limit_nbytes
        graph = planned_graph(job.graph, made.job_plan.plan)
        room_nbytes = made.share.budget_nbytes
        assert held_nbytes(graph, made.job_plan.program, made.within.device, room_nbytes) <= room_nbytes
        budgets[steers] = made.job_plan.budget_nbytes
    assert budgets[True] > budgets[False]
