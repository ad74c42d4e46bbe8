"""A device's memory among the jobs of one policy.

Policies that aim at a budget get one each: what the job wants, or where memory is short its lower bound and a
share of the rest that is proportional to what it wants beyond.  Policies whose plans heed no budget take what
their plans need, or are refused.

Source: ours.  The papers of single-job planners leave it open.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from tensile_db.errors import DoesNotFit
from tensile_db.graph import StepGraph
from tensile_db.scheduler.analysis.accesses import access_table, footprint_after_activity_analysis
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import DeviceSpec, Plan
from tensile_db.scheduler.request import JobRequest

#: Plans one job, given the device, its budget in bytes, and how many jobs share the link.
PlanOne = Callable[[JobRequest, DeviceSpec, int, int], Plan]
#: The least bytes that a policy's plans of a graph need.
Bound = Callable[[StepGraph], int]


class Limited(Protocol):
    """What may have a limit of its own: a request, or what one is made of."""

    @property
    def memory_limit_nbytes(self) -> int | None:
        """The limit; None: only the device's."""


def sharers_of_link(jobs: int, device: DeviceSpec) -> int:
    """Return among how many jobs' copies those of each have to find their time, while ops run that hide them.

    A device that runs the ops of fewer jobs at once has each job's ops take turns with the others', and its
    copies with theirs: both take as much longer, so that of the link a job has what it would have alone.
    """
    return max(1, min(jobs, device.concurrency))


def limit_of(job: Limited, memory_nbytes: int) -> int:
    """Return the most that the job may be granted."""
    return memory_nbytes if job.memory_limit_nbytes is None else min(memory_nbytes, job.memory_limit_nbytes)


def check_bounds(
    graphs: Sequence[StepGraph],
    limits: Sequence[int],
    memory_nbytes: int,
    bound: Bound = lower_bound_peak_nbytes,
    hint: str = "",
) -> None:
    """Raise DoesNotFit, with `hint` if there is one, where no plan of these jobs could fit."""
    _check_fit([bound(graph) for graph in graphs], limits, memory_nbytes, hint)


def share(
    graphs: Sequence[StepGraph],
    wanted: Sequence[int],
    limits: Sequence[int],
    memory_nbytes: int,
    bound: Bound = lower_bound_peak_nbytes,
) -> list[int]:
    """Return each job's budget: what it wants, or where memory is short its bound and a share of the rest.

    The jobs' bounds fit, see `check_bounds`.
    """
    wanted = [min(nbytes, limit) for nbytes, limit in zip(wanted, limits, strict=True)]
    if sum(wanted) <= memory_nbytes:
        return wanted
    bounds = [bound(graph) for graph in graphs]
    spare, beyond = memory_nbytes - sum(bounds), sum(wanted) - sum(bounds)
    return [least + (nbytes - least) * spare // beyond for least, nbytes in zip(bounds, wanted, strict=True)]


def plan_within_shares(
    jobs: Sequence[JobRequest],
    device: DeviceSpec,
    memory_nbytes: int,
    plan_one: PlanOne,
    bound: Bound = lower_bound_peak_nbytes,
    hint: str = "",
) -> tuple[Plan, ...]:
    """Plan each job within its share of the memory; it wants what it holds if all tensors stay while used.

    Raises DoesNotFit where the shares are below the jobs' bounds, and what `plan_one` raises.
    """
    graphs = [job.graph for job in jobs]
    limits = [limit_of(job, memory_nbytes) for job in jobs]
    check_bounds(graphs, limits, memory_nbytes, bound, hint)
    wanted = [int(footprint_after_activity_analysis(access_table(graph)).max()) for graph in graphs]
    budgets = share(graphs, wanted, limits, memory_nbytes, bound)
    return tuple(plan_one(job, device, budget, len(jobs)) for job, budget in zip(jobs, budgets, strict=True))


def plan_as_they_are(
    jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int, plan_one: PlanOne, hint: str
) -> tuple[Plan, ...]:
    """Plan each job for all of the memory.  Raises DoesNotFit, with `hint`, where the plans exceed it."""
    limits = [limit_of(job, memory_nbytes) for job in jobs]
    plans = tuple(plan_one(job, device, limit, len(jobs)) for job, limit in zip(jobs, limits, strict=True))
    needed = [lower(job.graph, plan).guaranteed_peak_nbytes for job, plan in zip(jobs, plans, strict=True)]
    _check_fit(needed, limits, memory_nbytes, hint)
    return plans


def _check_fit(needed: Sequence[int], limits: Sequence[int], memory_nbytes: int, hint: str) -> None:
    """Raise DoesNotFit where what a job needs exceeds its limit, or what all need the memory; in bytes."""
    for nbytes, limit in zip(needed, limits, strict=True):
        if nbytes > limit:
            raise DoesNotFit(needed_nbytes=nbytes, budget_nbytes=limit, hint=hint)
    if sum(needed) > memory_nbytes:
        raise DoesNotFit(needed_nbytes=sum(needed), budget_nbytes=memory_nbytes, hint=hint)
