"""`auto`, with ops in parts wherever that makes the faster plan within the memory that a job has now.

`auto` splits by what a job may have at most; this one by its budget, and so by who else runs: gradients of
weights may be summed up in another order than those of the same job alone (docs/planner/splits.md,
"What splitting does to results").  That is why it is not the default.  A job keeps its splits for as long as
the plan in force fits its budget, so that a drift of latencies, or more memory, changes no results.

Source: ours; TSPLIT section IV for the splits.
"""

from collections.abc import Sequence
from dataclasses import replace

from tensile_db.graph import TensorId
from tensile_db.scheduler.packing.latencies import as_packed
from tensile_db.scheduler.plan import DeviceSpec, Plan, Rewriting
from tensile_db.scheduler.policies import tsplit
from tensile_db.scheduler.policies.alone import plan_within
from tensile_db.scheduler.policies.in_parts import fastest_splits, needed_splits, packed_or_not
from tensile_db.scheduler.policies.packing import likely_packed, plan_whole
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import as_rewritten
from tensile_db.scheduler.shares import plan_within_shares, sharers_of_link
from tensile_db.scheduler.splitting.refusal import split_hint_of_all


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job within its share of the memory.

    Raises DoesNotFit, with the least memory that would do, where splitting does not suffice either.
    """
    bound, hint = tsplit.bound_of(jobs, device, memory_nbytes), split_hint_of_all(jobs, memory_nbytes)

    def plan_each(request: JobRequest, on: DeviceSpec, budget_nbytes: int, number: int) -> Plan:
        return plan_one(request, on, budget_nbytes, sharers_of_link(number, on))

    return plan_within_shares(jobs, device, memory_nbytes, plan_each, bound, hint)


def plan_one(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan one of `sharers` jobs that share the link.  Raises DoesNotFit where ops need more than that."""
    former = request.former
    # With less, other splits may be faster by far.
    fits = former is not None and former.guaranteed_peak_nbytes <= budget_nbytes
    if former is not None and fits and former.plan.policy == "auto_split":
        rewriting = former.plan.rewriting
    elif request.splits_by_need:
        rewriting = needed_splits(request.graph, budget_nbytes)
    else:
        rewriting = _fastest(_anew(request), device, budget_nbytes, sharers)
        # What is split anew is planned anew, as carefully as it was when it was chosen.
        request = _anew(request)
    if not rewriting.splits:
        return plan_whole(request, device, budget_nbytes, sharers, "auto_split")
    cut = as_rewritten(request, rewriting, device)
    return plan_within(cut, rewriting, device, budget_nbytes, sharers, "auto_split")


def _fastest(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Rewriting:
    """Return what is split, with tensors packed, or where no splits suffice with them, without."""

    def look(packed: tuple[TensorId, ...]) -> Rewriting:
        job = as_packed(request, packed, device)
        return Rewriting(packed=packed, splits=fastest_splits(job, device, budget_nbytes, sharers))

    return packed_or_not(likely_packed(request, device, budget_nbytes, sharers), look)


def _anew(request: JobRequest) -> JobRequest:
    return replace(request, former=None, at_once=False)
