"""Which tensors `auto` keeps in fewer bytes: where memory is short, and plans without that take longer.

Packing costs hardly any time, but an op more a tensor; so only tensors are packed that are a notable part of
what the job holds, the larger ones of them or all.  Where nobody waits, none are if a plan made at once takes
no longer than the ops without that, unless the ops take less time with it, as what reads codes reads less;
where it takes hardly longer, plans are made in each of these ways, and else hurried ones tell which way to
go, or, where two take about as long, careful ones of these do.  Packing changes no result, so what a job has
at the moment decides.

Source: ours; Jain et al., Gist (ISCA 2018), for what can be packed.
"""

from collections.abc import Sequence
from dataclasses import replace

from tensile_db.graph import StepGraph, TensorId
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.packing.latencies import as_packed
from tensile_db.scheduler.packing.packed_graph import packable
from tensile_db.scheduler.plan import DeviceSpec, Plan, Rewriting
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.alone import is_worth_a_change, period_ns, plan_at_once, plan_within
from tensile_db.scheduler.request import Former, JobRequest

#: Tensors are packed that are at least this part of eager's peak, or only those that are at least that.
_NOTABLE = 2048
_LARGE = 512
#: Plans are made in each way where one that is made at once takes at most so many times the ops' time.
_HARDLY_SLOWER = 1.05
#: A second way is as likely where its hurried plan takes at most so many times the fastest one's time.
_AS_LIKELY = 1.02


@once_for_each
def worth_packing(graph: StepGraph) -> tuple[TensorId, ...]:
    """Return the tensors that are packed where memory is short, ascending."""
    return _packable_from(graph, _NOTABLE)


def _ways_to_pack(graph: StepGraph) -> list[tuple[TensorId, ...]]:
    """Return sets of tensors to pack, each once: none, the large ones, all that are worth it."""
    return list(dict.fromkeys(((), _packable_from(graph, _LARGE), worth_packing(graph))))


def _packable_from(graph: StepGraph, part: int) -> tuple[TensorId, ...]:
    """Return the tensors that can be packed and are at least such a part of eager's peak."""
    whole_nbytes = vanilla.peak_nbytes(graph)
    return tuple(tensor for tensor in packable(graph) if graph.tensors[tensor].nbytes * part >= whole_nbytes)


def plan_whole(job: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int, name: str) -> Plan:
    """Plan one of `sharers` jobs that share the link, its ops whole, its tensors packed where that is faster.

    name: of the policy, whose own former plan is begun with.
    """

    def plan_with(packed: tuple[TensorId, ...], asked: JobRequest = job) -> Plan:
        rewriting = Rewriting(packed=packed)
        return plan_within(as_packed(asked, packed, device), rewriting, device, budget_nbytes, sharers, name)

    packed = worth_packing(job.graph)
    if not packed or vanilla.peak_nbytes(job.graph) <= budget_nbytes:
        return plan_with(())
    former, anew = _own_former(job, name), replace(job, former=None, at_once=False)
    if lower_bound_peak_nbytes(job.graph) > budget_nbytes:
        # As it was captured, it needs more than that.
        kept: tuple[TensorId, ...] = former.plan.packed if former is not None else ()
        still_fits = lower_bound_peak_nbytes(as_packed(job, kept, device).graph) <= budget_nbytes
        return plan_with(kept if still_fits else packed)
    if not job.improving:
        if former is not None:
            return plan_with(former.plan.packed)
        if job.former is not None and not job.former.plan.splits:
            # It ran as eager PyTorch does, and others wait for what it has too much.
            return plan_with(packed, replace(anew, at_once=True))
        if job.at_once:
            return plan_with(packed)
    as_it_is = plan_at_once(anew, device, budget_nbytes, sharers)
    choices: list[tuple[TensorId, ...]]
    if not as_it_is.quick:
        choices = [(), *_that_save_time(job, device)]
    elif period_ns(job, as_it_is, device) <= _HARDLY_SLOWER * sum(job.latencies_ns):
        choices = _ways_to_pack(job.graph)
    elif job.hurried:
        choices = [packed]
    else:
        choices = [_careful_packed(anew, device, budget_nbytes, sharers)]
    plans = [
        plan_with(each, job if former is not None and former.plan.packed == each else anew)
        for each in choices
    ]
    made = min(plans, key=lambda plan: period_ns(as_packed(job, plan.packed, device), plan, device))
    if former is None or former.plan.packed == made.packed or former.guaranteed_peak_nbytes > budget_nbytes:
        return made
    in_force, found = (as_packed(job, plan.packed, device) for plan in (former.plan, made))
    is_better = is_worth_a_change((found, made), (in_force, former.plan), device)
    return made if is_better else replace(former.plan, quick=False)


def _that_save_time(job: JobRequest, device: DeviceSpec) -> list[tuple[TensorId, ...]]:
    """Return the sets of tensors with which, packed, the ops take less time, for less is read of them."""
    ops_ns = sum(job.latencies_ns)
    return [way for way in _ways_to_pack(job.graph) if sum(as_packed(job, way, device).latencies_ns) < ops_ns]


def likely_packed(
    job: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int
) -> tuple[TensorId, ...]:
    """Return the tensors to pack, maybe none, with which a hurried plan of whole ops is faster.

    Those that are worth it where whole ops need more than the budget.
    """
    packed = worth_packing(job.graph)
    if not packed or lower_bound_peak_nbytes(job.graph) > budget_nbytes:
        return packed
    took_ns = _compared(replace(job, hurried=True), _ways_to_pack(job.graph), device, budget_nbytes, sharers)
    return min(took_ns, key=took_ns.__getitem__)


def _careful_packed(
    job: JobRequest, device: DeviceSpec, budget_nbytes: int, sharers: int
) -> tuple[TensorId, ...]:
    """Return the tensors to pack, maybe none, with which a plan of whole ops, which fit, is fastest.

    Hurried plans tell, and of two that are about as fast what search makes of them.
    """
    ways = _ways_to_pack(job.graph)
    hurried_ns = _compared(replace(job, hurried=True), ways, device, budget_nbytes, sharers)
    fastest, *others = sorted(ways, key=hurried_ns.__getitem__)
    likely = [way for way in others[:1] if hurried_ns[way] <= _AS_LIKELY * hurried_ns[fastest]]
    if not likely:
        return fastest
    careful_ns = _compared(job, [fastest, *likely], device, budget_nbytes, sharers)
    return min(careful_ns, key=careful_ns.__getitem__)


def _compared(
    job: JobRequest,
    ways: Sequence[tuple[TensorId, ...]],
    device: DeviceSpec,
    budget_nbytes: int,
    sharers: int,
) -> dict[tuple[TensorId, ...], int]:
    """Return the times of plans that are made to compare these ways to pack, by way."""
    took_ns = {}
    for packed in ways:
        asked = as_packed(job, packed, device)
        rewriting = Rewriting(packed=packed)
        made = plan_within(asked, rewriting, device, budget_nbytes, sharers, is_compared=True)
        took_ns[packed] = period_ns(asked, made, device)
    return took_ns


def _own_former(job: JobRequest, name: str) -> Former | None:
    """Return the plan in force, where it is one of this policy that saves memory, of whole ops."""
    former = job.former
    if former is None or former.plan.policy != name or former.plan.splits:
        return None
    return former if former.guaranteed_peak_nbytes < vanilla.peak_nbytes(job.graph) else None
