"""Copies back put behind others that are needed sooner, where an op waits for one of those.

A channel serves one copy at a time, in the order of the triggers.  A large tensor with time to spare that
begins just before small ones are due holds up the ops that need these.

Source: ours; docs/planner/auto.md.
"""

from dataclasses import replace

from tensile_db.scheduler.analysis.changes import Changes
from tensile_db.scheduler.analysis.residency import Absence
from tensile_db.scheduler.settling.copied import copies_of
from tensile_db.scheduler.timeline import Timeline


def let_urgent_pass(changes: Changes, timeline: Timeline, *, least_ns: int) -> bool:
    """Trigger copies back later where others behind them make an op wait; return whether any is.

    timeline: of the plan assembled from `changes.residency`, on a device with a channel for each direction.
    least_ns: waits that are no longer are left alone.
    """
    #: The copies back, in the order in which the channel serves them.
    returns = [copy for copy in copies_of(changes.residency, timeline) if not copy.to_host]
    #: By the time of its end, the place of a copy back.
    ending = {copy.end_ns: place for place, copy in enumerate(returns)}
    changed = False
    for position, until_ns in timeline.waits_ns(least_ns):
        place = ending.get(until_ns)
        if place is None:
            continue
        awaited = returns[place].absence
        while place and returns[place - 1].end_ns == returns[place].begin_ns:
            place -= 1
            ahead = returns[place]
            later = triggered_behind(ahead.absence, awaited)
            if _needed(ahead.absence) > position and is_triggered_later(later, ahead.absence):
                changes.replace(ahead.absence, later)
                returns[place] = replace(ahead, absence=later)
                changed = True
    return changed


def triggered_behind(absence: Absence, awaited: Absence) -> Absence:
    """Return the absence, its copy back triggered just after another's."""
    ops = absence.gap.ops
    end = awaited.end % ops + (ops if absence.end >= ops else 0)
    return replace(absence, end=end, in_delta_ns=awaited.in_delta_ns + 1)


def is_triggered_later(absence: Absence, other: Absence) -> bool:
    """Whether an absence's copy back stands behind another's in their channel."""
    return (absence.end, absence.in_delta_ns) > (other.end, other.in_delta_ns)


def _needed(absence: Absence) -> int:
    """Return the position of the op that the copy back is for."""
    return absence.gap.following % absence.gap.ops
