"""Swap scheduling: take the largest tensors of the peak to the host while copies hide behind ops.

Source: TENSILE section IV-C, algorithm 2.
Differs:
- Each job is planned against its own timeline with an even share of the link, since jobs do not run in step.
- A swap must cover the peak's op to be chosen; algorithm 2 leaves that to the next peak analysis.
- Where the device has two copy channels, they are booked apart; the paper's is one.
"""

from itertools import pairwise

from tensile_db.graph import TensorId
from tensile_db.scheduler.analysis.accesses import Gap
from tensile_db.scheduler.analysis.channels import Link
from tensile_db.scheduler.analysis.residency import Absence, Residency


def schedule_swap(residency: Residency, link: Link, failed: set[tuple[TensorId, int]]) -> TensorId | None:
    """Swap the largest tensor held at the job's peak that can be; return it, or None where none can.

    failed: (tensor, peak position) pairs known to be impossible; added to.
    """
    peak = residency.peak_position
    for tensor in residency.held_at(peak):
        if (tensor, peak) in failed or not residency.graph.tensors[tensor].nbytes:
            continue
        gap = residency.gap_at(tensor, peak)
        # What left within this gap already is still there at the peak because no copy is quicker.
        if gap is None or residency.absence_in(gap) is not None or not _swap_gap(residency, link, gap, peak):
            failed.add((tensor, peak))
            continue
        _swap_rest(residency, link, gap)
        return tensor
    return None


def _swap_gap(residency: Residency, link: Link, gap: Gap, peak: int, *, host_valid: bool = False) -> bool:
    """Book both copies of a gap around the peak: out as early, in as late as it can be."""
    nbytes = residency.graph.tensors[gap.tensor].nbytes
    begin_ns, end_ns, ops = residency.begin_ns, residency.end_ns, gap.ops
    period_ns = int(end_ns[-1])
    left_ns = int(end_ns[gap.previous])
    peak_at = gap.unrolled(peak)
    # Across iterations the copy out ends with the iteration, as the executor waits for it there.
    out_limit_ns = int(begin_ns[peak]) if peak_at < ops else period_ns
    out_ns = 0 if host_valid else link.out_ns(nbytes)
    out_start = link.to_host.earliest(left_ns, out_limit_ns, out_ns)
    if out_start is None:
        return False
    in_begin_ns = int(end_ns[peak]) if peak_at >= ops or not gap.wraps else 0
    in_ns = link.in_ns(nbytes)
    link.to_host.book(out_start, out_ns)
    in_start = link.to_device.latest(in_begin_ns, int(begin_ns[gap.following % ops]), in_ns)
    if in_start is None:
        link.to_host.unbook(out_start, out_ns)
        return False
    link.to_device.book(in_start, in_ns)
    residency.add(timed_absence(residency, gap, out_start, out_start + out_ns, in_start))
    return True


def timed_absence(residency: Residency, gap: Gap, out_start: int, out_end: int, in_start: int) -> Absence:
    """Anchor copies to the ops that trigger them, and count the ops they leave the tensor away for."""
    begin = int(residency.begin_ns.searchsorted(out_end, side="left"))
    out_position = int(residency.end_ns.searchsorted(out_start, side="right")) - 1
    out_position = max(out_position, gap.previous)
    arrives_before = int(residency.end_ns.searchsorted(in_start, side="right"))
    triggered_ns = int(residency.end_ns[arrives_before - 1]) if arrives_before else 0
    return Absence(
        gap=gap,
        begin=begin,
        end=arrives_before + gap.ops if gap.wraps else arrives_before,
        out_position=out_position,
        out_delta_ns=out_start - int(residency.end_ns[out_position]),
        in_delta_ns=in_start - triggered_ns,
    )


def _swap_rest(residency: Residency, link: Link, gap: Gap) -> None:
    """Take the tensor off in later gaps where the host's copy is valid still (algorithm 2, line 34)."""
    table = residency.table
    for previous, following in pairwise(table.positions[gap.tensor]):
        if previous < gap.following or following == previous + 1:
            continue
        if table.is_written_between(gap.tensor, gap.previous, previous + 1):
            return
        later = Gap(tensor=gap.tensor, previous=previous, following=following, ops=gap.ops)
        if residency.absence_in(later) is not None:
            continue
        hidden = _latest_hidden_op(residency, link, later)
        if hidden is None or not _swap_gap(residency, link, later, hidden, host_valid=True):
            return


def _latest_hidden_op(residency: Residency, link: Link, gap: Gap) -> int | None:
    """Return the last op that a swap-in as late as can be leaves without the tensor, or None."""
    in_ns = link.in_ns(residency.graph.tensors[gap.tensor].nbytes)
    start = link.to_device.latest(
        int(residency.end_ns[gap.previous]), int(residency.begin_ns[gap.following]), in_ns
    )
    if start is None:
        return None
    position = int(residency.end_ns.searchsorted(start, side="right")) - 1
    return position if position > gap.previous else None
