"""Copies to the device triggered earlier, as long as ops have to wait for them.

Source: Capuchin section 4.4: a tensor that is still being swapped in when it is needed has its in-trigger
moved earlier by 5 % of its swapping time, iteration by iteration, and never to where memory is short.
Differs: the paper's feedback comes from running; here it comes from the timeline, before anything runs, and
as many steps are taken at once as make up for what an op waited.
"""

from collections import defaultdict
from dataclasses import replace

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence, Residency
from tensile_db.scheduler.timeline import CopySpan, Timeline

#: A step, as a share of the tensor's swapping time (section 4.4).
STEP = 0.05


def trigger_earlier(residency: Residency, link: Link, timeline: Timeline, budget_nbytes: int) -> bool:
    """Move the triggers of copies that an op waited for; return whether any has moved.

    timeline: of the plan assembled from `residency`.
    """
    late_ns = _lateness(residency, timeline)
    moved = False
    for absences in list(residency.absences.values()):
        for absence in list(absences):
            if absence.recompute or absence.gap not in late_ns:
                continue
            earlier = _earlier(residency, link, absence, late_ns[absence.gap], budget_nbytes)
            if earlier is not absence:
                residency.replace(absence, earlier)
                moved = True
    return moved


def _lateness(residency: Residency, timeline: Timeline) -> dict[Gap, int]:
    """Return, by gap, how long an op waited for the tensor's return, ns; only where one did."""
    #: By the time at which an op began after having waited: how long, and what it reads.
    waits: dict[int, tuple[int, tuple[TensorId, ...]]] = {}
    previous_end_ns = 0
    for span in timeline.ops:
        if span.begin_ns > previous_end_ns:
            waits[span.begin_ns] = (span.begin_ns - previous_end_ns, residency.graph.ops[span.op].reads)
        previous_end_ns = span.end_ns
    copies: dict[TensorId, list[CopySpan]] = defaultdict(list)
    for copy in timeline.copies:
        if not copy.to_host:
            copies[copy.tensor].append(copy)
    late: dict[Gap, int] = {}
    for tensor, absences in residency.absences.items():
        swaps = sorted((a for a in absences if not a.recompute), key=lambda a: a.end % a.gap.ops)
        for absence, copy in zip(swaps, copies[tensor], strict=True):
            waited_ns, reads = waits.get(copy.end_ns, (0, ()))
            if tensor in reads:
                late[absence.gap] = waited_ns
    return late


def _earlier(residency: Residency, link: Link, absence: Absence, late_ns: int, budget_nbytes: int) -> Absence:
    """Return the absence with its return triggered earlier by the steps it was late, as memory allows."""
    assert not absence.gap.wraps, "Capuchin plans within an iteration"
    nbytes = residency.graph.tensors[absence.tensor].nbytes
    step_ns = max(1, int(STEP * link.in_ns(nbytes)))
    start_ns = int(residency.end_ns[absence.end - 1]) + absence.in_delta_ns - step_ns * -(-late_ns // step_ns)
    end = absence.end
    wanted = max(absence.begin, int(residency.end_ns.searchsorted(start_ns, side="right")))
    while end > wanted and residency.footprint[end - 1] + nbytes <= budget_nbytes:
        end -= 1
    delta_ns = max(0, start_ns - int(residency.end_ns[end - 1]))
    if (end, delta_ns) >= (absence.end, absence.in_delta_ns):
        return absence
    return replace(absence, end=end, in_delta_ns=delta_ns)
