"""Which jobs share a lane, and how much each may hold: before they are planned.

A lane's jobs take turns, so each of them is planned for the whole of the lane's ephemeral memory and of the
link.  State that stays costs memory and no time.  Where that leaves the plans too little, the state of some
jobs leaves with their turn as a whole, the largest first, and their turns last so many iterations that
moving it takes little of the time.  So jobs fit together whenever each of them would alone.

Source: ours.  Lanes are Salus' (section 3.3), swapping across iterations TENSILE's (section IV-C), here
carried to several jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tensile_db.errors import DoesNotFit
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.scheduler.sharing.demand import Demand
from tensile_db.scheduler.sharing.serving import (
    at_work,
    in_use,
    lane_apart,
    lanes_joined,
    leaving_first,
)
from tensile_db.scheduler.sharing.share import MOVING

#: Of what lanes want beyond the least that their jobs need, the share below which state leaves instead.
EASE = 0.3
#: Iterations of the longest turn.
_LONGEST_TURN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a job is to be planned for."""

    lane: int
    #: Sizes in bytes.
    budget_nbytes: int
    #: Whether the job's state stays on the device between its turns.
    stays: bool
    #: Iterations of a turn.
    iterations: int


def moving_ns(state_nbytes: int, device: DeviceSpec) -> float:
    """Return what it takes to bring a job's state in and out, for a turn of its."""
    return 1e9 * state_nbytes * (1 / device.d2h_bytes_per_s + 1 / device.h2d_bytes_per_s)


def lanes_to_keep_busy(demands: Sequence[Demand], concurrency: int) -> int:
    """Return how many jobs must run at once for the device to have no idle time, at least 1."""
    busy = sum(demand.busy for demand in demands) / len(demands)
    return max(1, min(len(demands), int(concurrency / busy + 1e-9)))


def balanced(demands: Sequence[Demand], lanes: int) -> dict[int, int]:
    """Return each job's lane, by job id: the longest jobs first, each into the lane with the least to do."""
    work_ns = [0] * lanes
    chosen: dict[int, int] = {}
    for demand in sorted(demands, key=lambda demand: (-demand.time_ns, demand.job_id)):
        lane = min(range(lanes), key=lambda lane: (work_ns[lane], lane))
        work_ns[lane] += demand.time_ns
        chosen[demand.job_id] = lane
    return _renumbered(chosen)


def grants(
    demands: Sequence[Demand], lane_of: Mapping[int, int], device: DeviceSpec, ease: float = EASE
) -> dict[int, Grant]:
    """Return what each job is granted, by job id.

    ease: below it state leaves; above 1: all state does.
    Raises DoesNotFit where not even one job of each lane fits.
    """
    memory_nbytes = device.memory_nbytes
    stays = {demand.job_id for demand in demands}
    for demand, stays_from in leaving_first(demands, ease):
        if _ease(demands, lane_of, stays, memory_nbytes) < stays_from:
            stays.discard(demand.job_id)
    if _ease(demands, lane_of, stays, memory_nbytes) < 0:
        needed = sum(_per_lane(demands, lane_of, set(), "least_nbytes").values())
        raise DoesNotFit(needed_nbytes=needed, budget_nbytes=memory_nbytes)
    free_nbytes = memory_nbytes - _state_nbytes(demands, stays)
    least = _per_lane(demands, lane_of, stays, "least_nbytes")
    wanted = _per_lane(demands, lane_of, stays, "wanted_nbytes")
    beyond_nbytes = sum(wanted.values()) - sum(least.values())
    spare_nbytes = min(free_nbytes - sum(least.values()), beyond_nbytes)
    room = {
        lane: least[lane]
        + ((wanted[lane] - least[lane]) * spare_nbytes // beyond_nbytes if beyond_nbytes else 0)
        for lane in least
    }
    return {
        demand.job_id: Grant(
            lane=lane_of[demand.job_id],
            # More than it has a use for would make no other plan.
            budget_nbytes=min(
                room[lane_of[demand.job_id]] + (demand.state_nbytes if demand.job_id in stays else 0),
                demand.wanted_nbytes,
            ),
            stays=demand.job_id in stays,
            iterations=1 if demand.job_id in stays else _turn(demand, device),
        )
        for demand in demands
    }


def with_serving(demands: Sequence[Demand], lane_of: Mapping[int, int], device: DeviceSpec) -> dict[int, int]:
    """Return lanes by job for those that serve, too: apart where memory is ample, else among the others'.

    lane_of: of those that do not serve.
    """
    others = at_work(demands)
    if len(others) == len(demands):
        return dict(lane_of)
    apart = lane_apart(lane_of, demands)
    # A lane that nobody uses takes nothing from the others.
    enough = EASE if any(in_use(demand) for demand in demands) else 1.0
    stays = {demand.job_id for demand in others}
    if not others or _ease(demands, apart, stays, device.memory_nbytes) >= enough:
        return apart
    return lanes_joined(lane_of, demands)


def _ease(
    demands: Sequence[Demand], lane_of: Mapping[int, int], stays: set[int], memory_nbytes: int
) -> float:
    """Return where the lanes' room lies between the least (0) and what they want (1); below 0: too little."""
    free_nbytes = memory_nbytes - _state_nbytes(demands, stays)
    least_nbytes = sum(_per_lane(demands, lane_of, stays, "least_nbytes").values())
    wanted_nbytes = sum(_per_lane(demands, lane_of, stays, "wanted_nbytes").values())
    if free_nbytes < least_nbytes:
        return -1.0
    if free_nbytes >= wanted_nbytes:
        return 1.0
    return (free_nbytes - least_nbytes) / (wanted_nbytes - least_nbytes)


def _per_lane(
    demands: Sequence[Demand], lane_of: Mapping[int, int], stays: set[int], what: str
) -> dict[int, int]:
    """Return the most that a job of the lane asks for beyond what stays of it, by lane, in bytes."""
    most: dict[int, int] = {}
    for demand in demands:
        beyond = getattr(demand, what) - (demand.state_nbytes if demand.job_id in stays else 0)
        lane = lane_of[demand.job_id]
        most[lane] = max(most.get(lane, 0), beyond)
    return most


def _state_nbytes(demands: Sequence[Demand], stays: set[int]) -> int:
    return sum(demand.state_nbytes for demand in demands if demand.job_id in stays)


def _turn(demand: Demand, device: DeviceSpec) -> int:
    iterations = moving_ns(demand.state_nbytes, device) / MOVING / max(1, demand.time_ns)
    return max(1, min(_LONGEST_TURN, int(iterations)))


def _renumbered(lane_of: Mapping[int, int]) -> dict[int, int]:
    """Return the same lanes, numbered in the order of their first jobs: equal inputs, equal lanes."""
    numbers: dict[int, int] = {}
    for job in sorted(lane_of):
        numbers.setdefault(lane_of[job], len(numbers))
    return {job: numbers[lane] for job, lane in lane_of.items()}
