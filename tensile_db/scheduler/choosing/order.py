"""An order of ops that frees gradients early: each parameter is updated as soon as its gradient is complete.

Eager PyTorch holds all gradients until the optimizer runs.  The updates of different parameters do not depend
on each other, so any of them may run in the middle of the backward pass, once no later op reads the old
parameter; the results are the same bit for bit.  A large gradient that only its update needs may be made
later still, when there is room for it.

Source: ours; docs/planner.md, "auto".
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.choosing.updates import find_updates, segments_of, with_waiting_gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """Large gradients, of which nothing but their update depends, made later than they could be."""

    #: How much later, as a share of the time from when they could be made to the iteration's end.
    share: float
    #: Of a gradient that is worth it.
    least_nbytes: int


def updates_early(
    graph: StepGraph,
    latencies_ns: Sequence[int],
    state_bytes_per_s: int | None = None,
    late: Late | None = None,
) -> tuple[OpId, ...]:
    """Return the ops with every parameter's update moved to just behind the last op that it depends on.

    Ops of the forward and the backward pass keep their order, and so do the ops of one update.
    latencies_ns: by op id, shape (ops,).  state_bytes_per_s: a rate at which the updates' own state can come
    and go; each update, or part of one, then waits until the state of those before has had time to.
    late: of gradients that can wait, and with them their updates.
    """
    updates, waiting = find_updates(graph), set[int]()
    if late is not None:
        updates, waiting = with_waiting_gradients(graph, updates, late.least_nbytes)
    group_of = {op: number for number, ops in enumerate(updates) for op in ops}
    after = _last_dependencies(graph, group_of, len(updates))
    base = [op.id for op in graph.ops if op.id not in group_of]
    ends_ns = list(accumulate(latencies_ns[op] for op in base))
    place = {op: index for index, op in enumerate(base)}
    # What depends on no other op runs where eager would: at the end.
    first = [len(base) - 1 if last is None else place[last] for last in after]
    if late is not None:
        for number in waiting:
            could_ns = ends_ns[first[number]]
            begin_ns = could_ns + late.share * (ends_ns[-1] - could_ns)
            first[number] = max(first[number], min(bisect_left(ends_ns, begin_ns), len(base) - 2))
    behind: dict[int, list[OpId]] = defaultdict(list)
    clock_ns = 0
    for number in sorted(range(len(updates)), key=lambda number: (first[number], number)):
        for segment, nbytes in segments_of(graph, updates[number]):
            at = first[number]
            if state_bytes_per_s is not None:
                clock_ns = max(clock_ns, ends_ns[at])
                at = max(at, min(bisect_left(ends_ns, clock_ns), len(base) - 2))
                clock_ns += copy_ns(nbytes, state_bytes_per_s)
            behind[at] += segment
    order: list[OpId] = []
    for index, op in enumerate(base):
        order.append(op)
        order += behind[index]
    return tuple(order)


def _last_dependencies(graph: StepGraph, group_of: Mapping[OpId, int], groups: int) -> list[OpId | None]:
    """Return for each update the last op outside of all updates that it must come after; None: none."""
    after: list[OpId | None] = [None] * groups
    last_write: dict[TensorId, OpId] = {}
    reads: dict[TensorId, list[OpId]] = defaultdict(list)
    for op in graph.ops:
        number = group_of.get(op.id)
        if number is not None:
            touched = [last_write[tensor] for tensor in {*op.reads, *op.writes} if tensor in last_write]
            for other in (*touched, *(read for tensor in op.writes for read in reads[tensor])):
                if other not in group_of:
                    after[number] = max(after[number] or other, other)
        for tensor in op.reads:
            reads[tensor].append(op.id)
        for tensor in op.writes:
            last_write[tensor] = op.id
            reads[tensor].clear()
    return after
