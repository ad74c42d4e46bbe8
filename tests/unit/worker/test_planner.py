"""The planning process, from the side that asks it."""

from dataclasses import replace

import pytest

from tensile_db.errors import InvalidRequest
from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, Tensor, TensorId
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.worker.planning.planner import Planner
from tensile_db.worker.planning.planning_process import (
    KEPT_GRAPHS,
    Broken,
    Graphs,
    Infeasible,
    Planned,
    Question,
    planning_error,
)


@pytest.fixture
def planner():
    planner = Planner()
    yield planner
    planner.close()


def question(*, memory_nbytes=1000, policy="tensile", phase=Phase.FORWARD):
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
        phase=phase,
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
    answer = planner.plan(question(memory_nbytes=399))
    assert isinstance(answer, Infeasible)
    assert (answer.needed_nbytes, answer.budget_nbytes) == (400, 399)
    assert answer.hint.startswith("Use a smaller batch_size")


def test_a_request_that_no_plan_can_meet_is_an_answer_with_what_to_ask_for_instead(planner):
    answer = planner.plan(question(policy="vdnn_conv", phase=Phase.BACKWARD))
    assert isinstance(answer, Broken)
    error = planning_error(answer.message, answer.hint)
    assert (type(error), error.sqlstate) == (InvalidRequest, "22023")
    assert error.message == 'policy "vdnn_conv" swaps feature maps of convolutions, and this network has none'
    assert error.hint == "Use policy => 'auto' or 'capuchin', which work on any network."


def test_a_failure_of_the_planner_is_an_answer(planner):
    answer = planner.plan(question(policy="no such policy"))
    assert isinstance(answer, Broken)
    assert answer.message == 'unknown policy "no such policy"'
    assert planning_error("a defect", None).sqlstate == "XX000"


def test_a_planning_process_that_was_killed_is_replaced(planner):
    planner.plan(question())
    planner._process.kill()
    planner._process.wait()
    assert isinstance(planner.plan(question()), Planned)


def test_a_graph_that_comes_again_is_the_one_that_is_known():
    graphs = Graphs()
    first, again = question(), question()
    assert graphs.known(first).requests[0].graph is first.requests[0].graph
    assert graphs.known(again).requests[0].graph is first.requests[0].graph


def test_of_many_graphs_those_asked_for_first_are_given_up():
    graphs = Graphs()
    first = question()
    graphs.known(first)
    for others in range(KEPT_GRAPHS):
        other = question()
        request = other.requests[0]
        tensor = replace(request.graph.tensors[0], name=f"other {others}")
        graphs.known(
            replace(other, requests=(replace(request, graph=replace(request.graph, tensors=(tensor,))),))
        )
    again = question()
    assert graphs.known(again).requests[0].graph is again.requests[0].graph
