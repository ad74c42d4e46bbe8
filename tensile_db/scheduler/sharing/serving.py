"""Where jobs that serve models have their turns, and whose model leaves the device first.

Rows are asked for one at a time, and whoever asks waits.  So where memory is ample the jobs that serve have a
lane of their own, and a row waits for no training's iteration; else they join the training jobs' lanes, each
the one whose iterations are the shortest, and a row waits for one of them.  Models that nobody has asked for
lately never cost another job memory that it has a use for: their states leave first, and they keep no lane.

Source: ours.  Salus (section 3.2) gives each inference job a lane, and leaves models on the device.
"""

from collections.abc import Mapping, Sequence

from tensile_db.scheduler.sharing.demand import Demand

#: A model that was asked for within this time is in use.
LATELY_NS = 10 * 10**9


def at_work(demands: Sequence[Demand]) -> list[Demand]:
    """Return those that do not serve."""
    return [demand for demand in demands if demand.unused_ns is None]


def in_use(demand: Demand) -> bool:
    """Whether the job serves a model that was asked for lately."""
    return demand.unused_ns is not None and demand.unused_ns < LATELY_NS


def leaving_first(demands: Sequence[Demand], ease: float) -> list[tuple[Demand, float]]:
    """Return in which order models leave the device, each with the ease from which on it stays.

    The longest unused first, those in use in an order that does not change with each row: who leaves lingers
    (turns.py), and every change is new plans for all.  They leave before any training's state does.
    """
    serving = [demand for demand in demands if demand.unused_ns is not None]
    serving.sort(key=lambda demand: (0 if in_use(demand) else -(demand.unused_ns or 0), demand.job_id))
    return [(demand, ease if in_use(demand) else max(ease, 1.0)) for demand in serving]


def lane_apart(lane_of: Mapping[int, int], demands: Sequence[Demand]) -> dict[int, int]:
    """Return lanes by job with one more, in which those have their turns that serve.

    lane_of: of those that do not.
    """
    own = max(lane_of.values(), default=-1) + 1
    return {demand.job_id: lane_of.get(demand.job_id, own) for demand in demands}


def lanes_joined(lane_of: Mapping[int, int], demands: Sequence[Demand]) -> dict[int, int]:
    """Return lanes by job where those that serve have their turns in the others' lanes."""
    if not lane_of:
        return lane_apart(lane_of, demands)
    longest_ns = {
        lane: max(demand.time_ns for demand in demands if lane_of.get(demand.job_id) == lane)
        for lane in sorted(set(lane_of.values()))
    }
    shortest = min(longest_ns, key=lambda lane: (longest_ns[lane], lane))
    return {demand.job_id: lane_of.get(demand.job_id, shortest) for demand in demands}
