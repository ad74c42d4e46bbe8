"""What a plan swaps and recomputes, as plain numbers to compare with."""

from tensile_db.scheduler.plan import Plan, Recompute, SwapOut


def swapped(plan: Plan) -> list[int]:
    """Return the tensors that are copied to the host, ascending."""
    return sorted(event.tensor for event in plan.events if isinstance(event, SwapOut))


def recomputed(plan: Plan) -> list[tuple[int, int, tuple[int, ...]]]:
    """Return, in the plan's order, before which op which tensor is made again by which ops."""
    return [(e.before_op, e.tensor, e.ops) for e in plan.events if isinstance(e, Recompute)]
