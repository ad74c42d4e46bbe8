"""Where an iteration finds persistent tensors: it starts as the one before it has ended.

Source: TENSILE, whose swaps go across iterations.
"""

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.plan import SWAPS, Plan, Release, SwapOut


def persistent_on_host(graph: StepGraph, plan: Plan) -> frozenset[TensorId]:
    """Return the persistent tensors that an iteration leaves, and the next one finds, on the host."""
    #: Where the last copy of each is triggered, and whether it is to the host.
    last: dict[TensorId, tuple[int, bool]] = {}
    position = _positions(plan.order)
    for event in plan.events:
        # Most events are releases, and one class is ruled out faster than two.
        if (
            not isinstance(event, Release)
            and isinstance(event, SWAPS)
            and graph.tensors[event.tensor].persistent
        ):
            place = position[event.trigger_op]
            known = last.get(event.tensor)
            # Of copies with the same trigger the one listed last counts.
            if known is None or place >= known[0]:
                last[event.tensor] = place, isinstance(event, SwapOut)
    return frozenset(tensor for tensor, (_, out) in last.items() if out)


@once_for_each
def _positions(order: tuple[OpId, ...]) -> dict[OpId | None, int]:
    """Return the place of each op in an order, and of the iteration's start."""
    position: dict[OpId | None, int] = {op: index for index, op in enumerate(order)}
    position[None] = -1
    return position
