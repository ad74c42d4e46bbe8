"""The planning process, from the side that asks it."""

import pytest

from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, Tensor, TensorId
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.worker.planner import Planner
from tensile_db.worker.planning_process import Broken, Infeasible, Planned, Question


@pytest.fixture
def planner():
    planner = Planner()
    yield planner
    planner.close()


def question(*, memory_nbytes=1000, policy="tensile"):
    parameter = Tensor(
        id=TensorId(0),
        nbytes=400,
        dtype="float32",
        shape=(100,),
        role=Role.PARAMETER,
        persistent=True,
        name="p",
    )
    op = Op(
        id=OpId(0),
        target="aten.relu_.default",
        phase=Phase.FORWARD,
        reads=(TensorId(0),),
        writes=(TensorId(0),),
        workspace_nbytes=0,
        flops=0,
        moved_nbytes=800,
        recomputable=False,
    )
    device = DeviceSpec(
        name="a",
        memory_nbytes=memory_nbytes,
        d2h_bytes_per_s=10**9,
        h2d_bytes_per_s=10**9,
        duplex=True,
        flops_per_s=10**9,
        memory_bytes_per_s=10**9,
        op_overhead_ns=1,
    )
    request = JobRequest(
        job_id=7, graph=StepGraph(tensors=(parameter,), ops=(op,)), latencies_ns=(100,), policy=policy
    )
    return Question(requests=(request,), device=device)


def test_a_plan_comes_back_for_each_job(planner):
    answer = planner.plan(question())
    assert isinstance(answer, Planned)
    assert [(plan.job_id, plan.budget_nbytes) for plan in answer.plans] == [(7, 400)]


def test_too_little_memory_is_an_answer(planner):
    assert planner.plan(question(memory_nbytes=399)) == Infeasible(needed_nbytes=400, budget_nbytes=399)


def test_a_failure_of_the_planner_is_an_answer(planner):
    answer = planner.plan(question(policy="no such policy"))
    assert isinstance(answer, Broken)
    assert "no such policy" in answer.message


def test_a_planning_process_that_was_killed_is_replaced(planner):
    planner.plan(question())
    planner._process.kill()
    planner._process.wait()
    assert isinstance(planner.plan(question()), Planned)
