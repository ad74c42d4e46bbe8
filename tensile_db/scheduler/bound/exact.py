"""The best plan of a small graph among those in which each tensor is away at most once in each gap.

A tensor stays in a gap, or is copied out at its start, awaited before any op of it and brought back after any
later one, or is released and recomputed at its end, by its producers or by those and their inputs'.  Events
are written here, not by the planner; what they come to is what the timeline says.

Source: ours; docs/planner/bound.md, "Small graphs".
"""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby, permutations, product
from operator import itemgetter

from tensile_db.errors import InvalidPlan
from tensile_db.graph import OpId, StepGraph
from tensile_db.scheduler.analysis.accesses import AccessTable, Gap, access_table
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.plan import DeviceSpec, Event, Plan, Recompute, Release, SwapIn, SwapOut, Wait
from tensile_db.scheduler.timeline import settle, simulate

#: An event and the position at which it is listed.
_Placed = tuple[int, Event]
#: The events of one choice.
_Choice = tuple[_Placed, ...]


def best_period_ns(
    graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec, budget_nbytes: int
) -> int | None:
    """Return the shortest period within the budget, in ns, in eager's order; None where no plan keeps to it.

    latencies_ns: by op id, shape (ops,).  Takes about a second for eight ops and seven tensors; with each
    tensor more many times as long.
    """
    table = access_table(graph)
    order = table.order
    releases = tuple(
        (int(table.last[tensor.id]), Release(tensor=tensor.id, after_op=order[table.last[tensor.id]]))
        for tensor in graph.tensors
        if not tensor.persistent and table.last[tensor.id] >= 0
    )
    best: int | None = None
    for choice in product(*(list(_choices(table, gap)) for gap in _gaps(table))):
        for events in _orders([*releases, *chain.from_iterable(choice)]):
            plan = Plan(policy="tried", order=order, events=events)
            try:
                plan = settle(graph, latencies_ns, plan, device)
                lower(graph, plan)
                timeline = simulate(graph, latencies_ns, plan, device)
            except InvalidPlan:
                continue
            if timeline.peak_nbytes <= budget_nbytes and (best is None or timeline.period_ns < best):
                best = timeline.period_ns
    return best


def _orders(listed: Sequence[_Placed]) -> Iterator[tuple[Event, ...]]:
    """Yield the events by position, and copies of one position in every order, which is their channel's."""
    copies = sorted((each for each in listed if isinstance(each[1], SwapOut | SwapIn)), key=itemgetter(0))
    others = [each for each in listed if not isinstance(each[1], SwapOut | SwapIn)]
    together = [list(permutations(group)) for _, group in groupby(copies, key=itemgetter(0))]
    for groups in product(*together):
        by_position = sorted([*others, *chain.from_iterable(groups)], key=itemgetter(0))
        yield tuple(event for _, event in by_position)


def _gaps(table: AccessTable) -> Iterator[Gap]:
    for tensor in table.graph.tensors:
        at_each = (table.gap_at(tensor.id, position) for position in range(len(table.order)))
        yield from sorted({gap for gap in at_each if gap is not None}, key=lambda gap: gap.previous)


def _choices(table: AccessTable, gap: Gap) -> Iterator[_Choice]:
    yield ()
    order, ops = table.order, gap.ops
    # Positions count on into the next iteration: it has left before op `begin`, and is back before `end`.
    for begin in range(gap.previous + 1, min(gap.following, ops) + 1):
        for end in range(max(begin, ops if gap.wraps else 0), gap.following + 1):
            out = SwapOut(tensor=gap.tensor, trigger_op=order[gap.previous])
            wait = Wait(tensor=gap.tensor, before_op=order[begin] if begin < ops else None)
            trigger = end - 1 - (ops if end >= ops else 0)
            back = SwapIn(tensor=gap.tensor, trigger_op=order[trigger] if trigger >= 0 else None)
            yield (gap.previous, out), (begin, wait), (trigger, back)
    if gap.wraps or table.graph.tensors[gap.tensor].persistent:
        return
    for again in _chains(table, gap):
        yield (
            (gap.previous, Release(tensor=gap.tensor, after_op=order[gap.previous])),
            (gap.following, Recompute(tensor=gap.tensor, before_op=order[gap.following], ops=again)),
        )


def _chains(table: AccessTable, gap: Gap) -> Iterator[tuple[OpId, ...]]:
    producers = {op for op in (table.order[p] for p in table.writes[gap.tensor]) if op <= gap.previous}
    inputs = {tensor for op in producers for tensor in table.graph.ops[op].reads}
    before = {table.order[p] for tensor in inputs for p in table.writes[tensor] if p < min(producers)}
    for ops in {tuple(sorted(producers)), tuple(sorted(producers | before))}:
        if all(table.graph.ops[op].recomputable for op in ops):
            yield ops
