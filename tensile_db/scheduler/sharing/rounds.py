"""How long all jobs of a device take for an iteration each, by their plans and lanes."""

from collections.abc import Sequence

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.sharing.demand import Demand
from tensile_db.scheduler.sharing.laning import lost_to_moving_ns, moving_ns
from tensile_db.scheduler.sharing.serving import at_work
from tensile_db.scheduler.sharing.shared_plan import SharedPlan

#: Of their stalls, what lanes at once do not fill for each other: none to three quarters of them where plans
#: of two jobs were walked op by op (`bench/together.py`).
_UNFILLED = 0.5
#: What several lanes at once save of the time of cores that make the copies, too.
_SAVED_BY_LANES = 0.15


def ops_time_ns(demands: Sequence[Demand]) -> int:
    """Return the time of an iteration's ops of all jobs at work, one after another."""
    return sum(demand.time_ns for demand in at_work(demands))


def work_ns(plans: Sequence[SharedPlan], demands: Sequence[Demand], device: DeviceSpec) -> float:
    """Return how long the processors work, on copies too, until all at work have had an iteration."""
    taken_ns = 0.0
    lanes = set()
    for plan, demand in zip(plans, demands, strict=True):
        if demand.unused_ns is None:
            share = plan.share
            lanes.add(share.lane)
            taken_ns += plan.job_plan.prediction.time_ns
            if share.transit_nbytes or share.resident_nbytes == 0:
                ahead = share.transit_nbytes > 0
                lost_ns = lost_to_moving_ns(share.transit_nbytes or demand.state_nbytes, device, ahead=ahead)
                taken_ns += lost_ns / share.iterations
    return taken_ns if len(lanes) == 1 else (1 - _SAVED_BY_LANES) * taken_ns


def round_ns(plans: Sequence[SharedPlan], demands: Sequence[Demand], device: DeviceSpec) -> float:
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


def slowdown(plans: Sequence[SharedPlan], demands: Sequence[Demand], device: DeviceSpec) -> float:
    """Return what an iteration of all takes, as a multiple of what their ops take one after another."""
    ops_ns = max(1, ops_time_ns(demands))
    if device.copies_cost_ops:
        return work_ns(plans, demands, device) / ops_ns
    return round_ns(plans, demands, device) * device.concurrency / ops_ns
