"""All jobs of a device planned together, each for its share: lanes first, then memory, then each job's plan.

Source: TENSILE sections III-D and IV-E (one scheduler for all jobs), Salus sections 3.3 and 4 (lanes).
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from tensile_db.errors import DoesNotFit, UnknownName
from tensile_db.graph import StepGraph
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes, time_of_ops_ns
from tensile_db.scheduler.joint import plan_jobs
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.policies import UNBUDGETED, vanilla
from tensile_db.scheduler.request import JobPlan, JobRequest
from tensile_db.scheduler.shares import limit_of
from tensile_db.scheduler.sharing.demand import Demand
from tensile_db.scheduler.sharing.find_lane import find_lane
from tensile_db.scheduler.sharing.laning import (
    EASE,
    Grant,
    balanced,
    grants,
    lanes_to_keep_busy,
    lost_to_moving_ns,
    moving_ns,
    with_serving,
)
from tensile_db.scheduler.sharing.orders import SHARING_POLICIES
from tensile_db.scheduler.sharing.serving import at_work, lanes_joined
from tensile_db.scheduler.sharing.share import Share, needed_nbytes

#: Plans that together take longer than their ops by more than this share are worth trying one lane more.
_STALLS = 0.05
#: Plans that together take at most so many times their ops' time are left at that.
_GOOD_ENOUGH = 1.005
#: More than lanes can want.
_NO_STATE_STAYS = 2.0
#: With this much of what they want beyond their least, plans do with hardly any swaps.
_COMFORT = 0.9
#: Of their stalls, what lanes at once do not fill for each other: none to three quarters of them where plans
#: of two jobs were walked op by op (`bench/together.py`).
_UNFILLED = 0.5
#: Budgets that are tried, as shares of what lies between the least that jobs need and what they want.
_PARTS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
#: What several lanes at once save of the time of cores that make the copies, too.
_SAVED_BY_LANES = 0.15
#: Tensors up to this size are small, while together they are no more than this part of the state.
_SMALL_NBYTES = 8 * 1024
_MOST_SMALL = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """What a job of several was planned within."""

    #: Its link is what the job's lane has of it.
    device: DeviceSpec
    grant: Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPlan:
    """A job's plan, and what the job may hold while others take their turns."""

    job_plan: JobPlan
    share: Share
    within: Within


#: Plans by all that they depend on.
Made = dict[Hashable, JobPlan]


def plan_shared(
    jobs: Sequence[JobRequest], device: DeviceSpec, sharing: str = "auto", made: Made | None = None
) -> tuple[SharedPlan, ...]:
    """Return a plan and a share for each job, in the jobs' order; the shares fit the device's memory.

    sharing: a name of `orders.SHARING_POLICIES`.
    made: plans of earlier questions about this device, which are used again and added to.
    Raises DoesNotFit, with the least memory that would do, and UnknownName.
    """
    if sharing not in SHARING_POLICIES:
        raise UnknownName("sharing policy", sharing, SHARING_POLICIES)
    if not jobs:
        return ()
    made = {} if made is None else made
    if len(jobs) > 1:
        jobs = [replace(job, hurried=True) for job in jobs]
    demands = [_demand(job, device) for job in jobs]
    others = at_work(demands)
    lanes = SHARING_POLICIES[sharing].lanes
    if not others:
        return _in_at_most(jobs, demands, 1, device, made)[0]
    if lanes is None:
        packed = _packed(others, device)
        try:
            return _planned(jobs, demands, packed, device, made)
        except DoesNotFit:
            # Not even with plans that make do with less.
            return _in_at_most(jobs, demands, max(1, len(set(packed.values())) - 1), device, made)[0]
    most = lanes or lanes_to_keep_busy(others, device.concurrency)
    plans, most = _in_at_most(jobs, demands, most, device, made)
    if device.copies_cost_ops and len(others) > 1:
        return _cheapest(jobs, demands, plans, most, device, made)
    if lanes or not _stalls(plans, demands, device):
        return plans
    # With a lane more, one job computes while another waits for a copy; with one less, there is more memory
    # for each.  In the same lanes, plans may leave on the host what no lane need then move.
    found = [plans]
    if len(others) == len(jobs) > 1:
        leave = _leaving_by_plan(jobs, demands, most, device, made, _round_ns(plans, demands, device))
        found += [] if leave is None else [leave]
    for count in (most + 1, most - 1):
        if 0 < count <= len(others):
            try:
                found.append(_planned(jobs, demands, balanced(others, count), device, made))
            except DoesNotFit:
                continue
    return min(found, key=lambda plans: _round_ns(plans, demands, device))


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
    within = _per_lane(device, lanes)
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
            plans = tuple(_plan_one(job, grant, within, made) for job, grant in pairs)
        except DoesNotFit:
            return None
        if _round_ns(plans, demands, device) >= worth_ns:
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
        if min(_work_ns(each, demands, device) for each in found) <= _GOOD_ENOUGH * _ops_ns(demands):
            break
        try:
            found.append(_planned(jobs, demands, balanced(others, count), device, made, ease))
        except DoesNotFit:
            continue
    return min(found, key=lambda plans: _work_ns(plans, demands, device))


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


def _demand(job: JobRequest, device: DeviceSpec) -> Demand:
    limit_nbytes = limit_of(job, device.memory_nbytes)
    if job.policy in UNBUDGETED:
        # What its plan needs cannot be bargained with.
        (plan,) = plan_jobs([job], device)
        least_nbytes = wanted_nbytes = plan.budget_nbytes
    else:
        # Where even its bound exceeds the limit, its ops are split to meet that.
        least_nbytes = min(lower_bound_peak_nbytes(job.graph), limit_nbytes)
        wanted_nbytes = max(least_nbytes, min(vanilla.peak_nbytes(job.graph), limit_nbytes))
    time_ns = time_of_ops_ns(job.latencies_ns)
    launching_ns = min(time_ns, len(job.graph.ops) * device.op_overhead_ns)
    return Demand(
        job_id=job.job_id,
        state_nbytes=job.graph.state_nbytes,
        least_nbytes=least_nbytes,
        wanted_nbytes=wanted_nbytes,
        time_ns=time_ns,
        # Between small ops the device has nothing to do.
        busy=max(0.01, 1 - launching_ns / max(1, time_ns)),
        unused_ns=job.unused_ns,
        small_nbytes=_small_nbytes(job.graph),
    )


def _small_nbytes(graph: StepGraph) -> int:
    """Return what the small tensors of a graph's state are together, the smallest first, in bytes."""
    sizes = sorted(tensor.nbytes for tensor in graph.tensors if tensor.persistent)
    small_nbytes = 0
    for nbytes in sizes:
        if nbytes > _SMALL_NBYTES or small_nbytes + nbytes > graph.state_nbytes // _MOST_SMALL:
            break
        small_nbytes += nbytes
    return small_nbytes


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
    within = _per_lane(device, lanes)
    return tuple(_plan_one(job, granted[job.job_id], within, made) for job in jobs)


def _per_lane(device: DeviceSpec, lanes: int) -> DeviceSpec:
    """Return the device as each of so many lanes has it, which compute at once and share the link."""
    return replace(
        device,
        d2h_bytes_per_s=device.d2h_bytes_per_s // lanes,
        h2d_bytes_per_s=device.h2d_bytes_per_s // lanes,
    )


def _plan_one(job: JobRequest, grant: Grant, device: DeviceSpec, made: Made) -> SharedPlan:
    alike = (
        # Of a search's jobs, many are alike.
        job.graph.digest,
        tuple(job.latencies_ns),
        job.policy,
        job.max_swapping_rate,
        job.memory_limit_nbytes,
        job.former,
        grant.budget_nbytes,
        device.d2h_bytes_per_s,
    )
    if alike not in made:
        (made[alike],) = plan_jobs([job], device, grant.budget_nbytes)
    plan = replace(made[alike], job_id=job.job_id)
    return SharedPlan(job_plan=plan, share=share_of(plan, grant), within=Within(device=device, grant=grant))


def share_of(plan: JobPlan, grant: Grant) -> Share:
    """Return what a job holds with a plan made for this grant."""
    at_begin_nbytes = plan.program.resident_nbytes
    resident_nbytes = at_begin_nbytes if grant.stays else min(grant.kept_nbytes, at_begin_nbytes)
    return Share(
        lane=grant.lane,
        resident_nbytes=resident_nbytes,
        ephemeral_nbytes=plan.budget_nbytes - resident_nbytes,
        transit_nbytes=at_begin_nbytes - resident_nbytes if grant.ahead else 0,
        iterations=grant.iterations,
    )


def _ops_ns(demands: Sequence[Demand]) -> int:
    return sum(demand.time_ns for demand in at_work(demands))


def _work_ns(plans: Sequence[SharedPlan], demands: Sequence[Demand], device: DeviceSpec) -> float:
    """Return what the device's processors do until all at work have had an iteration, copies included."""
    work_ns = 0.0
    lanes = set()
    for plan, demand in zip(plans, demands, strict=True):
        if demand.unused_ns is None:
            share = plan.share
            lanes.add(share.lane)
            work_ns += plan.job_plan.prediction.time_ns
            if share.transit_nbytes or share.resident_nbytes == 0:
                ahead = share.transit_nbytes > 0
                lost_ns = lost_to_moving_ns(share.transit_nbytes or demand.state_nbytes, device, ahead=ahead)
                work_ns += lost_ns / share.iterations
    return work_ns if len(lanes) == 1 else (1 - _SAVED_BY_LANES) * work_ns


def _stalls(plans: Sequence[SharedPlan], demands: Sequence[Demand], device: DeviceSpec) -> bool:
    return _round_ns(plans, demands, device) * device.concurrency > (1 + _STALLS) * _ops_ns(demands)


def _round_ns(plans: Sequence[SharedPlan], demands: Sequence[Demand], device: DeviceSpec) -> float:
    """Return when all at work have had an iteration: the longest lane's time, the link's, or the device's.

    What is moved ahead takes the link's time only, as long as that is enough.  The device's time is that of
    all ops, those that run again included, and what no lane computes in while others stall.
    """
    lanes: dict[int, float] = {}
    ahead_ns = busy_ns = stalled_ns = 0.0
    for plan, demand in zip(plans, demands, strict=True):
        if demand.unused_ns is not None:
            # It is asked now and then, and has no rounds.
            continue
        share, period_ns = plan.share, float(plan.job_plan.prediction.time_ns)
        if share.transit_nbytes:
            ahead_ns += moving_ns(share.transit_nbytes, device) / share.iterations
        elif share.resident_nbytes == 0:
            period_ns += moving_ns(demand.state_nbytes, device) / share.iterations
        ops_ns = plan.job_plan.timeline.ops_ns
        busy_ns += demand.busy * ops_ns
        stalled_ns += period_ns - ops_ns
        lanes[share.lane] = lanes.get(share.lane, 0) + period_ns
    if len(lanes) > 1:
        busy_ns += _UNFILLED * stalled_ns / len(lanes)
    return max(busy_ns / device.concurrency, ahead_ns, *lanes.values())
