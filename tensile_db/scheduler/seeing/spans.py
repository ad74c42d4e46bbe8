"""When a plan's copies are under way, event by event."""

from collections import defaultdict, deque
from collections.abc import Sequence

from tensile_db.graph import OpId, TensorId
from tensile_db.scheduler.plan import SWAPS, Plan, SwapOut
from tensile_db.scheduler.timeline import Timeline


def spans_of_events(plan: Plan, timeline: Timeline) -> Sequence[tuple[int, int] | None]:
    """Return when each event's copy begins and ends, in ns from the iteration's start; None: no copy.

    Both are the same where the host has the tensor's value already.
    """
    place: dict[OpId | None, int] = {op: index for index, op in enumerate(plan.order)}
    place[None] = -1
    # Copies of one tensor in one direction are served in the order of their triggers.
    copies: dict[tuple[bool, TensorId], deque[tuple[int, int]]] = defaultdict(deque)
    for copy in timeline.copies:
        copies[copy.to_host, copy.tensor].append((copy.begin_ns, copy.end_ns))
    swaps = [(index, event) for index, event in enumerate(plan.events) if isinstance(event, SWAPS)]
    spans: list[tuple[int, int] | None] = [None] * len(plan.events)
    for index, event in sorted(swaps, key=lambda each: place[each[1].trigger_op]):
        spans[index] = copies[isinstance(event, SwapOut), event.tensor].popleft()
    return spans
