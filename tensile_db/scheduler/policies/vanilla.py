"""What eager PyTorch holds: each tensor until its last use, every gradient until the optimizer has run.

Source: the vanilla group of TENSILE section V-A, with eager's own lifetimes: autograd frees what it saved
when the backward op has run, and `zero_grad` drops the gradients only before the next forward pass.
Differs: the papers' platform held everything to the iteration's end; eager does not.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tensile_db.graph import Role, StepGraph
from tensile_db.scheduler.analysis.accesses import access_table, footprint_after_activity_analysis
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.plan import DeviceSpec, Plan, Release
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.shares import check_bounds, limit_of


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job as eager PyTorch would run it.  Raises DoesNotFit where memory is too small."""
    limits = [limit_of(job, memory_nbytes) for job in jobs]
    check_bounds([job.graph for job in jobs], limits, memory_nbytes, peak_nbytes, _HINT)
    return tuple(plan_one(job.graph) for job in jobs)


_HINT = "The vanilla policy neither swaps nor recomputes: use the policy auto, or smaller batches."


@once_for_each
def peak_nbytes(graph: StepGraph) -> int:
    """Return the most that such a plan holds, predicted and guaranteed alike."""
    table = access_table(graph)
    is_gradient = np.array([tensor.role is Role.GRADIENT for tensor in graph.tensors], dtype=bool)
    last = np.where(is_gradient & (table.last >= 0), len(graph.ops) - 1, table.last)
    return int(footprint_after_activity_analysis(replace(table, last=last)).max())


@once_for_each
def plan_one(graph: StepGraph) -> Plan:
    """Release every tensor after its last use, gradients after the last op."""
    last_use = {}
    for op in graph.ops:
        for tensor in (*op.reads, *op.writes):
            last_use[tensor] = op.id
    last_op = graph.ops[-1].id
    releases = [
        Release(tensor=tensor.id, after_op=last_op if tensor.role is Role.GRADIENT else last_use[tensor.id])
        for tensor in graph.tensors
        if not tensor.persistent and tensor.id in last_use
    ]
    releases.sort(key=lambda release: (release.after_op, release.tensor))
    return Plan(policy="vanilla", order=tuple(op.id for op in graph.ops), events=tuple(releases))
