"""Copies back put behind others that are needed sooner, where an op waits for one of those.

A channel serves one copy at a time, in the order of the triggers.  A large tensor with time to spare that
begins just before small ones are due holds up the ops that need these.

Source: ours; docs/planner.md, "auto".
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Return:
    """A copy back, and what it ends."""

    absence: Absence
    begin_ns: int
    end_ns: int

    @property
    def needed(self) -> int:
        """The position of the op that it is for."""
        return self.absence.gap.following % self.absence.gap.ops


def let_urgent_pass(residency: Residency, timeline: Timeline, *, least_ns: int) -> bool:
    """Trigger copies back later where others behind them make an op wait; return whether any is.

    timeline: of the plan assembled from `residency`, on a device with a channel for each direction.
    least_ns: waits that are no longer are left alone.
    """
    returns = list(_returns(residency, timeline))
    #: By the time of its end, the place of a copy back.
    ending = {copy.end_ns: place for place, copy in enumerate(returns)}
    changed = False
    for position, until_ns in _waits(timeline, least_ns):
        place = ending.get(until_ns)
        if place is None:
            continue
        awaited = returns[place].absence
        while place and returns[place - 1].end_ns == returns[place].begin_ns:
            place -= 1
            ahead = returns[place]
            behind = _behind(ahead.absence, awaited)
            if ahead.needed > position and _trigger(behind) > _trigger(ahead.absence):
                residency.replace(ahead.absence, behind)
                returns[place] = replace(ahead, absence=behind)
                changed = True
    return changed


def _behind(absence: Absence, awaited: Absence) -> Absence:
    """Return the absence, its copy back triggered just after another's."""
    ops = absence.gap.ops
    end = awaited.end % ops + (ops if absence.end >= ops else 0)
    return replace(absence, end=end, in_delta_ns=awaited.in_delta_ns + 1)


def _trigger(absence: Absence) -> tuple[int, int]:
    """Return by what copies back are in order."""
    return absence.end, absence.in_delta_ns


def _returns(residency: Residency, timeline: Timeline) -> Iterator[_Return]:
    """Yield the copies back, in the order in which the channel serves them."""
    left: dict[TensorId, list[Absence]] = defaultdict(list)
    for tensor, absences in residency.absences.items():
        swaps = [absence for absence in absences if not absence.recompute]
        left[tensor] = sorted(swaps, key=lambda absence: absence.end % absence.gap.ops, reverse=True)
    for tensor, out, begin_ns, end_ns in timeline.moves.tolist():
        if not out:
            yield _Return(absence=left[tensor].pop(), begin_ns=begin_ns, end_ns=end_ns)


def _waits(timeline: Timeline, least_ns: int) -> Iterator[tuple[int, int]]:
    """Yield until when ops wait, or recomputations before them, and the positions of those ops."""
    begins_ns, ends_ns, again = timeline.runs[1:, 1], timeline.runs[:-1, 2], timeline.runs[:-1, 3]
    positions = np.cumsum(again == 0)
    for run in (begins_ns - ends_ns > least_ns).nonzero()[0].tolist():
        yield int(positions[run]), int(begins_ns[run])
