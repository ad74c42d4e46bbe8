"""A plan made to follow its own timeline, so that what it must be guaranteed is what it is predicted to hold.

By whole ops a tensor counts until the op before which its departure is awaited, and from the op after its
return is triggered.  Where the timeline says that a copy ends earlier, or has its turn later, the wait and
the trigger move there: no copy and no op starts later for it, and less memory has to be guaranteed.

Source: ours; docs/planner.md, "Two peaks".
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.plan import DeviceSpec, Plan
from tensile_db.scheduler.settling.assemble import assemble
from tensile_db.scheduler.settling.copied import copies_of
from tensile_db.scheduler.timeline import Timeline, settle, simulate


def follow_timeline(residency: Residency, timeline: Timeline, *, duplex: bool) -> None:
    """Move waits to where departures have ended, and triggers to where copies have their turn.

    timeline: of the plan assembled from `residency`.  Without `duplex` triggers stay: where both directions
    share a channel, the order of triggers is the order of copies.
    """
    _, ends_ns = timeline.op_times_ns()
    begins_ns = timeline.begins_with_recomputation_ns()
    copies = list(copies_of(residency, timeline))
    left_ns = {copy.absence.gap: copy.end_ns for copy in copies if copy.to_host}
    back_ns = {copy.absence.gap: copy.begin_ns for copy in copies if not copy.to_host}
    for absence in [copy.absence for copy in copies if copy.to_host]:
        moved = _awaited_when_gone(residency, absence, left_ns[absence.gap], begins_ns)
        if duplex:
            moved = _triggered_at_turn(moved, back_ns[absence.gap], ends_ns)
        if moved is not absence:
            residency.replace(absence, moved)
    _begin_with_their_trigger(residency, timeline.peak_nbytes)


def _begin_with_their_trigger(residency: Residency, peak_nbytes: int) -> None:
    """Have copies back that lift the guarantee above the predicted peak begin right after their trigger.

    One that begins in the middle of an op in which another tensor leaves: the guarantee is of both, and so
    shall the prediction be.
    """
    ops = len(residency.footprint)
    above = residency.footprint > peak_nbytes
    together: dict[int, list[Absence]] = defaultdict(list)
    for held in residency.absences.values():
        for absence in held:
            if above[absence.end % ops] and not absence.recompute:
                together[absence.end % ops].append(absence)
    for absences in together.values():
        delays_ns = {absence.in_delta_ns for absence in absences}
        # They keep their turns, which the shortest delays do that there are.
        shortest_ns = {delay_ns: rank for rank, delay_ns in enumerate(sorted(delays_ns))}
        for absence in absences:
            delay_ns = shortest_ns[absence.in_delta_ns]
            if delay_ns != absence.in_delta_ns:
                residency.replace(absence, replace(absence, in_delta_ns=delay_ns))


def assemble_followed(
    residency: Residency, latencies_ns: Sequence[int], device: DeviceSpec, policy: str
) -> Plan:
    """Return the plan once it follows its own timeline; latencies_ns: by op id, shape (ops,)."""
    plan = settle(residency.graph, latencies_ns, assemble(residency, policy), device)
    timeline = simulate(residency.graph, latencies_ns, plan, device)
    follow_timeline(residency, timeline, duplex=device.duplex)
    return assemble(residency, policy)


def _awaited_when_gone(
    residency: Residency, absence: Absence, left_ns: int, begins_ns: NDArray[np.int64]
) -> Absence:
    begin = max(int(begins_ns.searchsorted(left_ns, side="left")), absence.out_position + 1)
    return replace(absence, begin=begin) if begin < absence.begin else absence


def _triggered_at_turn(absence: Absence, back_ns: int, ends_ns: NDArray[np.int64]) -> Absence:
    turn = int(ends_ns.searchsorted(back_ns, side="right"))
    end = turn + absence.gap.ops if absence.gap.wraps else turn
    # A copy that begins only in the next iteration keeps its trigger.
    if not absence.end < end < absence.gap.following or turn >= absence.gap.ops:
        return absence
    return replace(absence, end=end, in_delta_ns=back_ns - int(ends_ns[turn - 1]))
