"""When a plan's copies are under way, event by event."""

from collections import defaultdict, deque
from collections.abc import Sequence

from tensile_db.graph import TensorId
from tensile_db.scheduler.plan import Plan, SwapOut, swaps_by_trigger
from tensile_db.scheduler.timeline import Timeline


def spans_of_events(plan: Plan, timeline: Timeline) -> Sequence[tuple[int, int] | None]:
    """Return when each event's copy begins and ends, in ns from the iteration's start; None: no copy.

    Both are the same where the host has the tensor's value already.
    """
    copies: dict[tuple[bool, TensorId], deque[tuple[int, int]]] = defaultdict(deque)
    for copy in timeline.copies:
        copies[copy.to_host, copy.tensor].append((copy.begin_ns, copy.end_ns))
    spans: list[tuple[int, int] | None] = [None] * len(plan.events)
    for index, event in swaps_by_trigger(plan):
        spans[index] = copies[isinstance(event, SwapOut), event.tensor].popleft()
    return spans
