"""`auto`, with ops in parts wherever that makes the faster plan.

Splits are looked for as `tsplit` does, and so that no op needs more than a share of the budget; with each of
these, and with none, the job is planned as `auto` plans it, and the fastest plan is taken.

What is split depends on the budget, and so on who else runs: gradients of weights may be summed up in another
order than eager PyTorch's, and than the same job's alone (docs/planner.md, "What splitting does to results").
That is why it is not the default.  A job keeps its splits for as long as the plan in force fits its budget,
so that a drift of latencies, or more memory, changes no results.

Source: ours; TSPLIT section IV for the splits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import DeviceSpec, Plan, Split
from tensile_db.scheduler.policies import auto, tsplit
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.shares import plan_within_shares
from tensile_db.scheduler.splitting.choice import SPLIT_HINT, Splitter
from tensile_db.scheduler.splitting.latencies import as_split
from tensile_db.scheduler.timeline import simulate_settled

#: No op may need more than these shares of the budget: what is left is for tensors that idle meanwhile.
_ROOM = (1.0, 0.75, 0.5)


def plan(jobs: Sequence[JobRequest], device: DeviceSpec, memory_nbytes: int) -> tuple[Plan, ...]:
    """Plan each job within its share of the memory.

    Raises DoesNotFit, with the least memory that would do, where splitting does not suffice either.
    """
    bound = tsplit.bound_of(jobs, device, memory_nbytes)
    return plan_within_shares(jobs, device, memory_nbytes, plan_one, bound, SPLIT_HINT)


def plan_one(request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int) -> Plan:
    """Plan one of `sharers` jobs that share the link.  Raises DoesNotFit where ops need more than that."""
    former = request.former
    # With less, other splits may be faster by far.
    fits = former is not None and former.guaranteed_peak_nbytes <= budget_nbytes
    if former is not None and fits and former.plan.policy == "auto_split":
        kept = as_split(request, former.plan.splits, device)
        kept = replace(kept, former=replace(former, plan=replace(former.plan, policy="auto")))
        return _named(auto.plan_within(kept, former.plan.splits, device, budget_nbytes, sharers))
    best: tuple[int, Plan] | None = None
    for splits in _splits(replace(request, former=None), device, budget_nbytes, sharers):
        split = as_split(request, splits, device)
        made = auto.plan_within(replace(split, former=None), splits, device, budget_nbytes, sharers)
        _, timeline = simulate_settled(split.graph, split.latencies_ns, made, device)
        if best is None or timeline.period_ns < best[0]:
            best = timeline.period_ns, made
        if best[0] <= sum(request.latencies_ns):
            break
    assert best is not None, "tsplit's splits meet every budget that it accepts"
    return _named(best[1])


def _splits(
    request: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int
) -> Iterator[tuple[Split, ...]]:
    """Yield sets of splits with which no op needs more than the budget, each once."""
    found: list[tuple[Split, ...]] = []
    if lower_bound_peak_nbytes(request.graph) <= budget_nbytes:
        found.append(())
        yield ()
    published = tsplit.plan_one(request, device, budget_nbytes, sharers).splits
    if published not in found:
        found.append(published)
        yield published
    splitter = Splitter(request, device)
    for room in _ROOM:
        splits, needed_nbytes = splitter.splits_within(int(room * budget_nbytes))
        if needed_nbytes <= budget_nbytes and splits not in found:
            found.append(splits)
            yield splits


def _named(made: Plan) -> Plan:
    return replace(made, policy="auto_split")
