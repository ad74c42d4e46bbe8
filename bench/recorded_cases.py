"""Plans of which it is worked out what recordings of them would be: within memory of a simulated H200."""

from dataclasses import replace

from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.errors import DoesNotFit
from tensile_db.graph import StepGraph
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.machines import machine
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.program import Program
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import planned_graph


def planned(
    captures: Captures, name: str, batch: int, optimizer: str, share: float
) -> tuple[StepGraph, Program] | None:
    """Return a network's graph and program as planned for a share of eager's peak; None: nothing fits."""
    graph = captures.graph(workload(name), batch, optimizer)
    device = replace(machine("sim:h200"), memory_nbytes=int(share * vanilla.peak_nbytes(graph)))
    request = JobRequest(job_id=1, graph=graph, latencies_ns=predict_latencies_ns(graph, device))
    try:
        (plan,) = plan_jobs([request], device)
    except DoesNotFit:
        return None
    return planned_graph(graph, plan.plan), plan.program
