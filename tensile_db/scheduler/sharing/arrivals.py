"""Plans for jobs that arrive, within what those that run leave: nobody is planned again for them.

Where an arrival leaves those that run less than their plans hold, all of these would have to be planned
again, and to give up memory, before the newcomer's first iteration.  So it joins a lane of theirs as it is,
where there is enough for it.  Lanes are chosen for all of them afterwards, while nobody waits.

Source: ours.
"""

from collections.abc import Sequence
from dataclasses import replace

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.sharing.demand import Demand, demand_of
from tensile_db.scheduler.sharing.laning import EASE, Grant, balanced, grants, turn_iterations
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.serving import at_work
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan
from tensile_db.scheduler.sharing.shared_plans import Made, per_lane, plan_granted


def plan_arrivals(
    jobs: Sequence[JobRequest], device: DeviceSpec, sharing: str, shares: Sequence[Share | None]
) -> tuple[SharedPlan, ...] | None:
    """Return plans and shares of the jobs that arrive, in their order; those that run keep theirs.

    shares: what each job may hold now; None: it arrives.  Together with those that are returned they fit.
    None where nobody runs, or those that run could keep their plans anyway or leave too little, where they
    have more than their plans need, where models are served, and under `pack` and `fifo`.
    """
    running = [share for share in shares if share is not None]
    policy = SHARING_POLICIES[sharing]
    demands = [demand_of(job, device) for job in jobs]
    if not running or policy.lanes is None or policy.alone or len(at_work(demands)) < len(jobs):
        return None
    if _all_keep_their_plans(jobs, demands, device):
        return None
    arrived: list[SharedPlan] = []
    made: Made = {}
    of_lane = per_lane(device, len({share.lane for share in running}))
    for job, demand, share in zip(jobs, demands, shares, strict=True):
        if share is not None:
            continue
        grant = _grant_beside(demand, running, device)
        if grant is None:
            return None
        if grant.budget_nbytes < demand.wanted_nbytes and any(each.recorded_nbytes for each in running):
            # Whoever runs gives up what it only replays in, rather than that the newcomer has less.
            return None
        try:
            plan = plan_granted(replace(job, hurried=True, at_once=True, in_haste=True), grant, of_lane, made)
        except DoesNotFit:
            # Some policies need more than the least that any plan does.
            return None
        running.append(plan.share)
        # Whatever is planned next, lanes are chosen anew: it is not known among whom this was planned.
        arrived.append(replace(plan, within=replace(plan.within, quick=True)))
    return tuple(arrived)


def _all_keep_their_plans(jobs: Sequence[JobRequest], demands: Sequence[Demand], device: DeviceSpec) -> bool:
    """Whether in turns, which takes least memory, all that run would be granted what their plans hold."""
    try:
        granted = grants(demands, balanced(demands, 1), device)
    except DoesNotFit:
        return False
    return all(
        job.former is None or job.former.guaranteed_peak_nbytes <= granted[job.job_id].budget_nbytes
        for job in jobs
    )


def _grant_beside(demand: Demand, running: Sequence[Share], device: DeviceSpec) -> Grant | None:
    """Return what a job may have in the lane that has most room; None where that is little."""
    free_nbytes = device.memory_nbytes - needed_nbytes(running)
    room = {share.lane: 0 for share in running}
    for share in running:
        room[share.lane] = max(room[share.lane], share.ephemeral_nbytes)
    lane = max(room, key=lambda lane: (room[lane], -lane))
    budget_nbytes = min(free_nbytes + room[lane], demand.wanted_nbytes)
    # With less the others, whose turns come after its own, would wait long for each of its iterations.
    enough_nbytes = demand.least_nbytes + int(EASE * (demand.wanted_nbytes - demand.least_nbytes))
    if free_nbytes < 0 or budget_nbytes < enough_nbytes:
        return None
    stays = demand.state_nbytes <= free_nbytes
    return Grant(
        lane=lane,
        budget_nbytes=budget_nbytes,
        stays=stays,
        ahead=False,
        kept_nbytes=0,
        iterations=1 if stays else turn_iterations(demand, device, ahead=False),
    )
