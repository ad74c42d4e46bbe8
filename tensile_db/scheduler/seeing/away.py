"""What a plan keeps off the device, when: bytes on the host by swaps, bytes released to be recomputed.

Together with what the timeline holds, it is what the same ops would hold without swaps and recomputation.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.plan import Plan, Recompute, Release
from tensile_db.scheduler.timeline import CopySpan, Timeline

#: (time in ns, bytes from then on), ascending by time, from 0.
Steps = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Away:
    """Bytes off the device over one iteration."""

    swapped: Steps
    recomputed: Steps


def away(graph: StepGraph, plan: Plan, timeline: Timeline) -> Away:
    """Return what is away by swaps, from a copy's end to the next one's start, and by recomputation."""
    swapped = [
        (begin_ns, end_ns, graph.tensors[tensor].nbytes)
        for tensor, copies in _by_tensor(timeline.copies).items()
        for begin_ns, end_ns in _on_host(copies, timeline.period_ns)
    ]
    recomputed = [
        (begin_ns, end_ns, graph.tensors[tensor].nbytes)
        for tensor, begin_ns, end_ns in _released(graph, plan, timeline)
    ]
    period_ns = timeline.period_ns
    return Away(swapped=_steps(swapped, period_ns), recomputed=_steps(recomputed, period_ns))


def _by_tensor(copies: Iterable[CopySpan]) -> dict[TensorId, list[CopySpan]]:
    grouped: dict[TensorId, list[CopySpan]] = defaultdict(list)
    for copy in copies:
        grouped[copy.tensor].append(copy)
    return grouped


def _on_host(copies: Sequence[CopySpan], period_ns: int) -> list[tuple[int, int]]:
    """Return the intervals, ns, from each copy to the host to the copy back, over the iteration's end too."""
    intervals = []
    for index, copy in enumerate(copies):
        if not copy.to_host:
            continue
        last = index + 1 == len(copies)
        back = copies[0 if last else index + 1]
        intervals.append((copy.end_ns, back.begin_ns + (period_ns if last else 0)))
    return intervals


def _released(graph: StepGraph, plan: Plan, timeline: Timeline) -> list[tuple[TensorId, int, int]]:
    """Return each tensor that is recomputed, with when it was released and when it is being made again."""
    recomputes: dict[OpId, list[Recompute]] = defaultdict(list)
    releases: dict[OpId, list[TensorId]] = defaultdict(list)
    for event in plan.events:
        if isinstance(event, Recompute):
            recomputes[event.before_op].append(event)
        elif isinstance(event, Release):
            releases[event.after_op].append(event.tensor)
    found: list[tuple[TensorId, int, int]] = []
    released_ns: dict[TensorId, int] = {}
    spans = iter(timeline.ops)
    for op in plan.order:
        for event in recomputes[op]:
            begins: dict[TensorId, int] = {}
            for span in [next(spans) for _ in event.ops]:
                for tensor in graph.ops[span.op].writes:
                    begins.setdefault(tensor, span.begin_ns)
            if event.tensor in released_ns:
                found.append((event.tensor, released_ns.pop(event.tensor), begins[event.tensor]))
        span = next(spans)
        released_ns |= dict.fromkeys(releases[op], span.end_ns)
    return found


def _steps(intervals: Iterable[tuple[int, int, int]], period_ns: int) -> Steps:
    """Return the sum of (begin, end, bytes) over one period; what goes over its end comes in at its start."""
    changes: dict[int, int] = defaultdict(int, {0: 0})
    for begin_ns, end_ns, nbytes in intervals:
        if begin_ns >= end_ns:
            continue
        whole, begin_ns = divmod(begin_ns, period_ns)
        end_ns -= whole * period_ns
        changes[begin_ns] += nbytes
        if end_ns > period_ns:
            changes[0] += nbytes
        changes[end_ns - period_ns if end_ns > period_ns else end_ns] -= nbytes
    times = sorted(at_ns for at_ns in changes if at_ns < period_ns)
    return tuple(zip(times, accumulate(changes[at_ns] for at_ns in times), strict=True))
