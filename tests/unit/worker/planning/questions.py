"""Questions about a job of one op, as a worker asks its planner."""

from dataclasses import replace

from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, Tensor, TensorId
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.worker.planning.planning_process import Question
from tensile_db.worker.planning.splitting_process import SplitSearch


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


def graph(name="p"):
    (request,) = question().requests
    return replace(request.graph, tensors=(replace(request.graph.tensors[0], name=name),))


def search(limit_nbytes):
    return SplitSearch(graph=graph(), limit_nbytes=limit_nbytes, keeps_bits=False)
