"""Which jobs share a lane, and how much each may hold: before they are planned.

A lane's jobs take turns, so each of them is planned for the whole of the lane's ephemeral memory and of the
link.  State that stays costs memory and no time.  Where that leaves the plans too little, the state of some
jobs leaves with their turn as a whole, the largest first, and their turns last so many iterations that
moving it takes little of the time.  If the plans have enough beside it, the lane keeps room for one state in
transit, and states are moved ahead, while another job computes; else a job's lane waits for its state.  So
jobs fit together whenever each of them would alone.

Where copies take time of what computes, moving a state is never hidden, not even where the link is idle, so
turns last longer.

Source: ours.  Lanes are Salus' (section 3.3), swapping across iterations TENSILE's (section IV-C), here
carried to several jobs.
"""

from collections.abc import Iterator, Mapping, Sequence
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
#: Fewer states than these need no less room in transit than where they are.
_WORTH_MOVING = 3
#: The most that moving a state may take of what computes, as a share of the turn.
_LOST = 0.05
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
    #: Whether it is moved, if it leaves, while others of its lane compute.
    ahead: bool
    #: What stays of a state that leaves.
    kept_nbytes: int
    #: Iterations of a turn.
    iterations: int


def moving_ns(state_nbytes: int, device: DeviceSpec) -> float:
    """Return what it takes to bring a job's state in and out, for a turn of its."""
    return 1e9 * state_nbytes * (1 / device.d2h_bytes_per_s + 1 / device.h2d_bytes_per_s)


def lost_to_moving_ns(state_nbytes: int, device: DeviceSpec, *, ahead: bool) -> float:
    """Return what bringing a job's state in and out takes of the time of its lane, for a turn of its."""
    return 2 * device.ops_lose_ns(state_nbytes) if ahead else moving_ns(state_nbytes, device)


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

    ease: below it state leaves; above 1: all state does, and nothing is moved ahead.
    Raises DoesNotFit where not even one job of each lane fits.
    """
    memory_nbytes = device.memory_nbytes
    # Models leave for no more ease than they always would, but where all state does.
    models_ease = EASE if ease <= 1 else ease
    models = _models_that_stay(demands, lane_of, memory_nbytes, models_ease)
    rooms = _moved_ahead(demands, lane_of, memory_nbytes, models, ease) if ease <= 1 else None
    if rooms is None:
        # Moving within the turn is dear, more so than swaps in moderation.
        rooms = _moved_within(demands, lane_of, memory_nbytes, models, models_ease)
    if rooms.ease < 0:
        nothing_stays = _Rooms(demands, lane_of, memory_nbytes, stays=frozenset(), ahead=False)
        raise DoesNotFit(needed_nbytes=sum(nothing_stays.least.values()), budget_nbytes=memory_nbytes)
    granted = {}
    for demand in demands:
        stays, kept_nbytes = demand.job_id in rooms.stays, rooms.kept_nbytes(demand)
        granted[demand.job_id] = Grant(
            lane=lane_of[demand.job_id],
            # More than it has a use for would make no other plan.
            budget_nbytes=min(rooms.of_lane(lane_of[demand.job_id]) + kept_nbytes, demand.wanted_nbytes),
            stays=stays,
            ahead=rooms.moves_ahead(demand),
            kept_nbytes=0 if stays else kept_nbytes,
            iterations=1 if stays else turn_iterations(demand, device, ahead=rooms.moves_ahead(demand)),
        )
    return granted


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
    stays = frozenset(demand.job_id for demand in others)
    rooms = _Rooms(demands, apart, device.memory_nbytes, stays=stays, ahead=False)
    if not others or rooms.ease >= enough:
        return apart
    return lanes_joined(lane_of, demands)


class _Rooms:
    """The memory of lanes, if these jobs' states stay; sizes in bytes, by lane."""

    def __init__(
        self,
        demands: Sequence[Demand],
        lane_of: Mapping[int, int],
        memory_nbytes: int,
        *,
        stays: frozenset[int],
        ahead: bool,
    ) -> None:
        self.stays = stays
        self.ahead = ahead
        #: The most that a job of the lane asks for beyond what stays of it.
        self.least: dict[int, int] = {}
        self._wanted: dict[int, int] = {}
        transit: dict[int, int] = {}
        staying_nbytes = 0
        for demand in demands:
            lane, kept_nbytes = lane_of[demand.job_id], self.kept_nbytes(demand)
            staying_nbytes += kept_nbytes
            moved_nbytes = demand.state_nbytes - kept_nbytes if self.moves_ahead(demand) else 0
            transit[lane] = max(transit.get(lane, 0), moved_nbytes)
            self.least[lane] = max(self.least.get(lane, 0), demand.least_nbytes - kept_nbytes)
            self._wanted[lane] = max(self._wanted.get(lane, 0), demand.wanted_nbytes - kept_nbytes)
        free_nbytes = memory_nbytes - staying_nbytes - sum(transit.values())
        self._beyond_nbytes = sum(self._wanted.values()) - sum(self.least.values())
        self._spare_nbytes = min(free_nbytes - sum(self.least.values()), self._beyond_nbytes)

    def moves_ahead(self, demand: Demand) -> bool:
        """Whether a job's state is moved while others compute; a model's comes when it is asked for."""
        return self.ahead and demand.job_id not in self.stays and demand.unused_ns is None

    def kept_nbytes(self, demand: Demand) -> int:
        """Return what stays of a job's state."""
        if demand.job_id in self.stays:
            return demand.state_nbytes
        return demand.small_nbytes if self.moves_ahead(demand) else 0

    @property
    def ease(self) -> float:
        """Where the lanes' room lies between the least (0) and what they want (1); below 0: too little."""
        if self._spare_nbytes < 0:
            return -1.0
        return self._spare_nbytes / self._beyond_nbytes if self._beyond_nbytes else 1.0

    def of_lane(self, lane: int) -> int:
        """Return the room of a lane, beyond what stays."""
        if not self._beyond_nbytes:
            return self.least[lane]
        beyond_nbytes = self._wanted[lane] - self.least[lane]
        return self.least[lane] + beyond_nbytes * self._spare_nbytes // self._beyond_nbytes


def _models_that_stay(
    demands: Sequence[Demand], lane_of: Mapping[int, int], memory_nbytes: int, ease: float
) -> frozenset[int]:
    """Return the jobs that serve models whose states stay, while all states of those at work do."""
    stays = frozenset(demand.job_id for demand in demands)
    if not at_work(demands):
        # Where not all can stay, states linger in all of the memory, and leave it by use, without new plans.
        all_stay = _Rooms(demands, lane_of, memory_nbytes, stays=stays, ahead=False)
        return stays if all_stay.ease >= ease else frozenset()
    for demand, stays_from in leaving_first(demands, ease):
        if _Rooms(demands, lane_of, memory_nbytes, stays=stays, ahead=False).ease < stays_from:
            stays -= {demand.job_id}
    return stays - {demand.job_id for demand in at_work(demands)}


def _moved_ahead(
    demands: Sequence[Demand],
    lane_of: Mapping[int, int],
    memory_nbytes: int,
    models: frozenset[int],
    ease: float,
) -> _Rooms | None:
    """Return rooms with states in transit beside them; None where those leave the plans too little."""

    def rooms(stays: frozenset[int]) -> _Rooms:
        return _Rooms(demands, lane_of, memory_nbytes, stays=stays, ahead=True)

    tried = [rooms(stays) for stays in _ever_fewer(demands, models)]
    found = next((each for each in tried if each.ease >= ease), max(tried, key=lambda each: each.ease))
    others = at_work(demands)
    leaving = [lane_of[demand.job_id] for demand in others if demand.job_id not in found.stays]
    few = {lane for lane in leaving if leaving.count(lane) < _WORTH_MOVING}
    found = rooms(found.stays | {demand.job_id for demand in others if lane_of[demand.job_id] in few})
    return found if found.ease >= EASE else None


def _moved_within(
    demands: Sequence[Demand],
    lane_of: Mapping[int, int],
    memory_nbytes: int,
    models: frozenset[int],
    ease: float,
) -> _Rooms:
    """Return rooms without any for states in transit."""
    for stays in _ever_fewer(demands, models):
        rooms = _Rooms(demands, lane_of, memory_nbytes, stays=stays, ahead=False)
        if rooms.ease >= ease:
            break
    return rooms


def _ever_fewer(demands: Sequence[Demand], models: frozenset[int]) -> Iterator[frozenset[int]]:
    """Yield the jobs whose state stays: these models and all at work, then without the largest, and so on."""
    others = at_work(demands)
    stays = models | {demand.job_id for demand in others}
    yield stays
    for demand in sorted(others, key=lambda demand: (-demand.state_nbytes, demand.job_id)):
        stays -= {demand.job_id}
        yield stays


def turn_iterations(demand: Demand, device: DeviceSpec, *, ahead: bool) -> int:
    """Return how many iterations a turn lasts of a job whose state leaves with it."""
    turn_ns = moving_ns(demand.state_nbytes, device) / MOVING
    if device.copies_cost_ops:
        turn_ns = max(turn_ns, lost_to_moving_ns(demand.state_nbytes, device, ahead=ahead) / _LOST)
    return max(1, min(_LONGEST_TURN, int(turn_ns / max(1, demand.time_ns))))


def _renumbered(lane_of: Mapping[int, int]) -> dict[int, int]:
    """Return the same lanes, numbered in the order of their first jobs: equal inputs, equal lanes."""
    numbers: dict[int, int] = {}
    for job in sorted(lane_of):
        numbers.setdefault(lane_of[job], len(numbers))
    return {job: numbers[lane] for job, lane in lane_of.items()}
