"""Delays that make a plan's copies start when the lowered program starts them.

A program hands a copy to the device over only after the waits at the same place (`lowering.py`).  In a plan the copy
has only its trigger and a delay, so the delay must say when those waits are over; else a replay of the events would
hold both tensors at once.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.plan import DeviceSpec, Event, Plan, SwapIn, Wait
from tensile_db.scheduler.timeline import Timeline, simulate

#: Each round settles at least the first copy not yet settled, and nearly always all of them.
MAX_ROUNDS = 8


def settle(graph: StepGraph, latencies_ns: Sequence[int], plan: Plan, device: DeviceSpec) -> Plan:
    """Return the plan with swap-ins delayed until the waits between their trigger and the next op are over."""
    following: dict[OpId | None, OpId | None] = dict(zip((None, *plan.order), (*plan.order, None), strict=True))
    waits: dict[OpId | None, list[TensorId]] = defaultdict(list)
    for event in plan.events:
        if isinstance(event, Wait) and event.before_op is not None:
            waits[event.before_op].append(event.tensor)
    for _ in range(MAX_ROUNDS):
        timeline = simulate(graph, latencies_ns, plan, device)
        triggered_ns = _trigger_times(timeline)
        left_ns = {copy.tensor: copy.end_ns for copy in timeline.copies if copy.to_host}
        events: list[Event] = []
        for event in plan.events:
            if isinstance(event, SwapIn) and waits[following[event.trigger_op]]:
                over_ns = max(left_ns[tensor] for tensor in waits[following[event.trigger_op]])
                delay_ns = over_ns - triggered_ns[event.trigger_op]
                events.append(replace(event, delta_ns=max(event.delta_ns, delay_ns)))
            else:
                events.append(event)
        if tuple(events) == plan.events:
            break
        plan = replace(plan, events=tuple(events))
    return plan


def _trigger_times(timeline: Timeline) -> dict[OpId | None, int]:
    times: dict[OpId | None, int] = {span.op: span.end_ns for span in timeline.ops if not span.recompute}
    times[None] = 0
    return times
