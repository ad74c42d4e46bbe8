"""The default: whatever meets the budget in the least time, of all that can be done to a job's tensors.

In this order: parameters are updated as soon as their gradients are complete (`choosing/order.py`); copies
that hide behind ops, optimizer state and parameters across iterations included, beginning with what cannot be
made again cheaply; recomputation just before each consumer, the cheapest by time and byte first
(`choosing/choices.py`); stalls last (`choosing/passive.py`).  Several such plans are made, which differ in
how updates are spread, how far recomputation may reach back and what is swapped first, and the fastest is
taken; where none meets the budget, one pass of swaps does (`choosing/furthest.py`).  Where that takes longer
than the ops, choices are searched for, all at once (`choosing/search.py`).  Before all that, tensors are
kept in fewer bytes once no op takes more of them than these hold (`packing.py`), where memory is
short; and where a single op needs much of what the job may ever have, ops are split, if it makes
the faster plan (`in_parts.py`).
A job of which everything fits is left as it is.

`auto_exact` is the same with such splits only as change no result: bit for bit eager PyTorch, whatever the
memory.

Source: ours; docs/planner/auto.md.
"""

from collections.abc import Sequence
from dataclasses import replace

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import DeviceSpec, Plan, Rewriting
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.alone import plan_within
from tensile_db.scheduler.policies.in_parts import needed_splits, splits_for
from tensile_db.scheduler.policies.packing import plan_whole
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import as_rewritten
from tensile_db.scheduler.shares import check_bounds, limit_of, share, sharers_of_link


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan jobs that share a device so that their guaranteed peaks together fit.

    Raises DoesNotFit, with the least memory that would do.
    """
    return _plan(jobs, device, memory_nbytes, "auto", keeps_bits=False)


def plan_exact(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan jobs like `plan`, with such splits only as change no result."""
    return _plan(jobs, device, memory_nbytes, "auto_exact", keeps_bits=True)


def _plan(
    jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int, name: str, *, keeps_bits: bool
) -> tuple[Plan, ...]:
    in_parts = [_in_parts(job, device, name, keeps_bits=keeps_bits) for job in jobs]
    graphs = [job.graph for job, _ in in_parts]
    limits = [limit_of(job, memory_nbytes) for job in jobs]
    check_bounds(graphs, limits, memory_nbytes)
    wanted = [vanilla.peak_nbytes(graph) for graph in graphs]
    budgets = share(graphs, wanted, limits, memory_nbytes)
    sharers = sharers_of_link(len(jobs), device)
    plans: list[Plan] = []
    for place, ((job, rewriting), budget) in enumerate(zip(in_parts, budgets, strict=True)):
        alike = next((other for other in range(place) if _alike(jobs, budgets, other, place)), None)
        if alike is not None:
            plans.append(plans[alike])
        elif rewriting != Rewriting():
            plans.append(plan_within(job, rewriting, device, budget, sharers, name))
        else:
            plans.append(plan_whole(job, device, budget, sharers, name))
    return tuple(plans)


def _alike(jobs: Sequence[JobRequest], budgets: Sequence[int], one: int, other: int) -> bool:
    """Whether two jobs get the same plan."""
    return budgets[one] == budgets[other] and replace(jobs[one], job_id=jobs[other].job_id) == jobs[other]


def _in_parts(
    job: JobRequest, device: DeviceSpec, name: str, *, keeps_bits: bool
) -> tuple[JobRequest, Rewriting]:
    """Return the job with its ops split, which the most decides that it may ever have, and how they are.

    That stays as it is for as long as it suffices: also where a device has lost some of its memory.  A job
    whose ops stay whole is returned as it was captured, unless it needs more than it may have then.
    """
    limit_nbytes = limit_of(job, device.memory_nbytes)
    if job.former is not None and job.former.plan.policy == name:
        rewriting = job.former.plan.rewriting if job.former.plan.splits else Rewriting()
        cut = as_rewritten(job, rewriting, device)
        if lower_bound_peak_nbytes(cut.graph) <= limit_nbytes:
            return cut, rewriting
    if job.splits_by_need:
        rewriting = needed_splits(job.graph, limit_nbytes, keeps_bits=keeps_bits)
    else:
        rewriting = splits_for(job, limit_nbytes, keeps_bits=keeps_bits)
    return as_rewritten(job, rewriting, device), rewriting
