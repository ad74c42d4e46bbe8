"""Salus' assignment of lanes: one job after another, from its persistent and ephemeral memory.

Source: Salus algorithm 1 (FINDLANE).
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from tensile_db.scheduler.sharing.share import Share, needed_nbytes


def find_lane(
    others: Sequence[Share], resident_nbytes: int, ephemeral_nbytes: int, memory_nbytes: int
) -> int | None:
    """Return the lane of a job that comes to these others; None where it must wait.

    A lane of its own if there is room for one; else the smallest lane that is large enough; else the
    smallest one that may grow to its need.
    """
    lanes = {
        lane: max(share.ephemeral_nbytes for share in others if share.lane == lane)
        for lane in sorted({share.lane for share in others})
    }
    newcomer = Share(
        lane=_unused(lanes.keys()), resident_nbytes=resident_nbytes, ephemeral_nbytes=ephemeral_nbytes
    )

    def is_safe(lane: int) -> bool:
        return needed_nbytes([*others, replace(newcomer, lane=lane)]) <= memory_nbytes

    if is_safe(newcomer.lane):
        return newcomer.lane
    by_size = sorted(lanes, key=lambda lane: (lanes[lane], lane))
    large_enough = [lane for lane in by_size if lanes[lane] >= ephemeral_nbytes]
    for lane in [*large_enough, *by_size]:
        if is_safe(lane):
            return lane
    return None


def _unused(lanes: Collection[int]) -> int:
    return next(lane for lane in range(len(lanes) + 1) if lane not in lanes)
