"""All jobs of a device planned together, each for its share: lanes first, then memory, then each job's plan.

Source: TENSILE sections III-D and IV-E (one scheduler for all jobs), Salus sections 3.3 and 4 (lanes).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tensile_db.errors import DoesNotFit, UnknownName
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.sharing.demand import Demand, demand_of
from tensile_db.scheduler.sharing.find_lane import find_lane
from tensile_db.scheduler.sharing.laning import (
    EASE,
    Grant,
    balanced,
    grants,
    lanes_to_keep_busy,
    with_serving,
)
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.rounds import ops_time_ns, round_ns, slowdown, work_ns
from tensile_db.scheduler.sharing.serving import at_work, lanes_joined
from tensile_db.scheduler.sharing.share import Share, needed_nbytes
from tensile_db.scheduler.sharing.shared_plan import SharedPlan, Within, share_of

#: Plans that together take longer than their ops by more than this share are worth trying one lane more.
_STALLS = 0.05
#: Plans that together take at most so many times their ops' time are left at that.
_GOOD_ENOUGH = 1.005
#: Lanes in which jobs stall stay while those are slowed down as they were, to within this factor.  Where they
#: stall less, too, there may be others that are better still.
_AS_BEFORE = 1.02
#: More than lanes can want.
_NO_STATE_STAYS = 2.0
#: With this much of what they want beyond their least, plans do with hardly any swaps.
_COMFORT = 0.9
#: Budgets that are tried, as shares of what lies between the least that jobs need and what they want.
_PARTS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)


#: Plans by all that they depend on.
Made = dict[Hashable, JobPlan]


def plan_shared(
    jobs: Sequence[JobRequest],
    device: DeviceSpec,
    sharing: str = "auto",
    made: Made | None = None,
    in_force: Sequence[Within | None] = (),
    *,
    at_once: bool = False,
) -> tuple[SharedPlan, ...]:
    """Return a plan and a share for each job, in the jobs' order; the shares fit the device's memory.

    sharing: a name of `orders.SHARING_POLICIES`.
    made: plans of earlier questions about this device, which are used again and added to.
    in_force: what each job's plan in force was made for; where these are the same jobs on the same device,
    they keep lanes and memory as long as those are about as good as they were.
    at_once: somebody waits for a first iteration.  First plans are made at once, too, and where jobs stall no
    other lanes are tried; plans and lanes that may be better otherwise say so (`quick`).
    Raises DoesNotFit, with the least memory that would do, and UnknownName.
    """
    if sharing not in SHARING_POLICIES:
        raise UnknownName("sharing policy", sharing, SHARING_POLICIES)
    if not jobs:
        return ()
    made = {} if made is None else made
    if len(jobs) > 1:
        jobs = [replace(job, hurried=True) for job in jobs]
    if at_once:
        others_wait = len(jobs) > 1
        jobs = [replace(job, at_once=True, in_haste=others_wait and job.former is None) for job in jobs]
    demands = [demand_of(job, device) for job in jobs]
    kept = _in_lanes_in_force(jobs, demands, device, made, in_force)
    if kept is not None:
        return kept
    chosen, quick = _in_chosen_lanes(jobs, demands, device, sharing, made, at_once=at_once)
    known = partial(
        replace,
        among=_ids(jobs),
        slowdown=slowdown(chosen, demands, device),
        to_keep_busy=_to_keep_busy(demands, device),
        quick=quick,
    )
    return tuple(replace(each, within=known(each.within)) for each in chosen)


def _to_keep_busy(demands: Sequence[Demand], device: DeviceSpec) -> int:
    others = at_work(demands)
    return lanes_to_keep_busy(others, device.concurrency) if others else 1


def _ids(jobs: Sequence[JobRequest]) -> tuple[int, ...]:
    return tuple(sorted(job.job_id for job in jobs))


def _in_lanes_in_force(
    jobs: Sequence[JobRequest],
    demands: Sequence[Demand],
    device: DeviceSpec,
    made: Made,
    in_force: Sequence[Within | None],
) -> tuple[SharedPlan, ...] | None:
    """Return plans for the lanes and the memory that the jobs have; None where others are worth a try."""
    known = [within for within in in_force if within is not None]
    among = _ids(jobs)
    if len(known) < len(jobs) or any(within.among != among or within.quick for within in known):
        return None
    if len(at_work(demands)) < len(jobs):
        # What is asked of served models changes what they should have.
        return None
    if _to_keep_busy(demands, device) > max(within.to_keep_busy for within in known):
        # Between ops that are that short, more lanes find time.
        return None
    lanes = len({within.grant.lane for within in known})
    if any(within.device != per_lane(device, lanes) for within in known):
        return None
    try:
        plans = tuple(
            plan_granted(job, within.grant, within.device, made)
            for job, within in zip(jobs, known, strict=True)
        )
    except DoesNotFit:
        return None
    if needed_nbytes(plan.share for plan in plans) > device.memory_nbytes:
        return None
    was = max(within.slowdown for within in known)
    slower = slowdown(plans, demands, device)
    if slower > 1 + _STALLS and not was / _AS_BEFORE <= slower <= _AS_BEFORE * was:
        return None
    return tuple(replace(plan, within=within) for plan, within in zip(plans, known, strict=True))


def _in_chosen_lanes(
    jobs: Sequence[JobRequest],
    demands: Sequence[Demand],
    device: DeviceSpec,
    sharing: str,
    made: Made,
    *,
    at_once: bool,
) -> tuple[tuple[SharedPlan, ...], bool]:
    """Return plans for lanes that are chosen for the jobs as they are now.

    And whether others are worth a try: where somebody waits, none are tried.
    """
    others = at_work(demands)
    lanes = SHARING_POLICIES[sharing].lanes
    if not others:
        return _in_at_most(jobs, demands, 1, device, made)[0], False
    if lanes is None:
        packed = _packed(others, device)
        try:
            return _planned(jobs, demands, packed, device, made), False
        except DoesNotFit:
            # Not even with plans that make do with less.
            return _in_at_most(jobs, demands, max(1, len(set(packed.values())) - 1), device, made)[0], False
    most = lanes or _to_keep_busy(demands, device)
    plans, most = _in_at_most(jobs, demands, most, device, made)
    if device.copies_cost_ops and len(others) > 1:
        is_worth = work_ns(plans, demands, device) > _GOOD_ENOUGH * ops_time_ns(demands)
        if at_once or not is_worth:
            return plans, is_worth
        return _cheapest(jobs, demands, plans, most, device, made), False
    if lanes or slowdown(plans, demands, device) <= 1 + _STALLS:
        return plans, False
    if at_once:
        return plans, len(others) > 1
    # With a lane more, one job computes while another waits for a copy; with one less, there is more memory
    # for each.  In the same lanes, plans may leave on the host what no lane need then move.
    found = [plans]
    if len(others) == len(jobs) > 1:
        leave = _leaving_by_plan(jobs, demands, most, device, made, round_ns(plans, demands, device))
        found += [] if leave is None else [leave]
    for count in (most + 1, most - 1):
        if 0 < count <= len(others):
            try:
                found.append(_planned(jobs, demands, balanced(others, count), device, made))
            except DoesNotFit:
                continue
    return min(found, key=lambda plans: round_ns(plans, demands, device)), False


def _leaving_by_plan(
    jobs: Sequence[JobRequest],
    demands: Sequence[Demand],
    lanes: int,
    device: DeviceSpec,
    made: Made,
    worth_ns: float,
) -> tuple[SharedPlan, ...] | None:
    """Return plans for the largest budgets whose states fit as far as those plans leave them on the device.

    What a plan has on the host at an iteration's end is moved behind the job's own ops, turn or no turn.
    None where no such plans fit that have a shorter round than `worth_ns`.
    """
    lane_of = balanced(demands, lanes)
    within = per_lane(device, lanes)
    for part in _PARTS:
        budgets = [
            each.least_nbytes + int(part * (each.wanted_nbytes - each.least_nbytes)) for each in demands
        ]
        if max(budgets) > device.memory_nbytes:
            continue
        granted = [
            Grant(
                lane=lane_of[demand.job_id],
                budget_nbytes=nbytes,
                stays=True,
                ahead=False,
                kept_nbytes=0,
                iterations=1,
            )
            for demand, nbytes in zip(demands, budgets, strict=True)
        ]
        try:
            pairs = zip(jobs, granted, strict=True)
            plans = tuple(plan_granted(job, grant, within, made) for job, grant in pairs)
        except DoesNotFit:
            return None
        if round_ns(plans, demands, device) >= worth_ns:
            # Plans for less memory take longer still.
            return None
        if needed_nbytes(plan.share for plan in plans) <= device.memory_nbytes:
            return plans
    return None


def _cheapest(
    jobs: Sequence[JobRequest],
    demands: Sequence[Demand],
    plans: tuple[SharedPlan, ...],
    lanes: int,
    device: DeviceSpec,
    made: Made,
) -> tuple[SharedPlan, ...]:
    """Return what takes the ops' processors least: these plans, fewer lanes, or more states that leave.

    Lanes that copy or recompute much fight for what computes; fewer have more memory each.
    """
    others = at_work(demands)
    found = [plans]
    ways = [(lanes >> halved, EASE) for halved in range(1, lanes.bit_length())]
    ways += [(1, _COMFORT), (1, _NO_STATE_STAYS)]
    for count, ease in ways:
        if min(work_ns(each, demands, device) for each in found) <= _GOOD_ENOUGH * ops_time_ns(demands):
            break
        try:
            found.append(_planned(jobs, demands, balanced(others, count), device, made, ease))
        except DoesNotFit:
            continue
    return min(found, key=lambda plans: work_ns(plans, demands, device))


def _in_at_most(
    jobs: Sequence[JobRequest], demands: Sequence[Demand], lanes: int, device: DeviceSpec, made: Made
) -> tuple[tuple[SharedPlan, ...], int]:
    """Return plans in as many of these lanes as fit, and how many those are."""
    others = at_work(demands)
    for count in range(lanes, 1, -1):
        try:
            return _planned(jobs, demands, balanced(others, count), device, made), count
        except DoesNotFit:
            continue
    one = balanced(others, 1)
    try:
        return _planned(jobs, demands, one, device, made), 1
    except DoesNotFit:
        if len(jobs) == 1:
            raise
    # Some policies need more than the least that any plan does.  Without the others' state on the device each
    # job may have what it may have alone.
    return _planned(jobs, demands, one, device, made, ease=_NO_STATE_STAYS), 1


def _packed(demands: Sequence[Demand], device: DeviceSpec) -> dict[int, int]:
    """Return lanes for jobs that keep what they would like, as long as there is room (Salus' PACK)."""
    shares: dict[int, Share] = {}
    for demand in demands:
        beyond_nbytes = max(0, demand.wanted_nbytes - demand.state_nbytes)
        placed = list(shares.values())
        lane = find_lane(placed, demand.state_nbytes, beyond_nbytes, device.memory_nbytes)
        if lane is None:
            # Its plan must do with less: in the lane that has most.
            lane = max(placed, key=lambda share: (share.ephemeral_nbytes, -share.lane)).lane if placed else 0
        shares[demand.job_id] = Share(
            lane=lane, resident_nbytes=demand.state_nbytes, ephemeral_nbytes=beyond_nbytes
        )
    return {job: share.lane for job, share in shares.items()}


def _planned(
    jobs: Sequence[JobRequest],
    demands: Sequence[Demand],
    lane_of: Mapping[int, int],
    device: DeviceSpec,
    made: Made,
    ease: float = EASE,
) -> tuple[SharedPlan, ...]:
    """Return plans for these lanes of those that do not serve; the others come beside or into them."""
    lanes = max(1, len(set(lane_of.values())))
    joined = lanes_joined(lane_of, demands) if ease > 1 else with_serving(demands, lane_of, device)
    granted = grants(demands, joined, device, ease)
    within = per_lane(device, lanes)
    return tuple(plan_granted(job, granted[job.job_id], within, made) for job in jobs)


def per_lane(device: DeviceSpec, lanes: int) -> DeviceSpec:
    """Return the device as each of so many lanes has it, which compute at once and share the link."""
    return replace(
        device,
        d2h_bytes_per_s=device.d2h_bytes_per_s // lanes,
        h2d_bytes_per_s=device.h2d_bytes_per_s // lanes,
    )


def plan_granted(job: JobRequest, grant: Grant, device: DeviceSpec, made: Made) -> SharedPlan:
    """Return the job's plan for what it is granted; device: as its lane has it, made: as of `plan_shared`."""
    alike = (
        # Of a search's jobs, many are alike.
        job.graph.digest,
        tuple(job.latencies_ns),
        job.policy,
        job.max_swapping_rate,
        job.memory_limit_nbytes,
        job.former,
        job.at_once,
        job.in_haste,
        grant.budget_nbytes,
        device.d2h_bytes_per_s,
    )
    if alike not in made:
        (made[alike],) = plan_jobs([job], device, grant.budget_nbytes)
    plan = replace(made[alike], job_id=job.job_id)
    return SharedPlan(job_plan=plan, share=share_of(plan, grant), within=Within(device=device, grant=grant))
