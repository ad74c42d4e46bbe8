"""An order of ops that frees gradients early: each parameter is updated as soon as its gradient is complete.

Eager PyTorch holds all gradients until the optimizer runs.  The updates of different parameters do not depend
on each other, so any of them may run in the middle of the backward pass, once no later op reads the old
parameter; the results are the same bit for bit.  A large gradient that only its update needs may be made
later still, when there is room for it.

Source: ours; docs/planner/auto.md.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.choosing.updates import (
    find_updates,
    segments_of,
    with_waiting_gradients,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """Updates among the other ops."""

    #: Per update: its parts, each with the bytes of its state.
    segments: list[list[tuple[list[OpId], int]]]
    #: All other ops, in eager's order.
    base: list[OpId]
    #: Per update and part of it: the index in `base` of the last op that it must come after.
    first: list[list[int]]


def _place(graph: StepGraph, updates: list[list[OpId]]) -> _Placed:
    segments = [segments_of(graph, ops) for ops in updates]
    number_of = {op: number for number, ops in enumerate(updates) for op in ops}
    base = [op.id for op in graph.ops if op.id not in number_of]
    place = {op: index for index, op in enumerate(base)}
    last = _last_dependencies(graph, number_of)
    first = []
    for parts in segments:
        of_parts = (max((place[last[op]] for op in ops if op in last), default=-1) for ops, _ in parts)
        # Parts keep their order.
        after = list(accumulate(of_parts, max))
        # A part that depends on no other op goes with the first one that does; an update that depends on none
        # runs where eager would, at the end.
        soonest = next((index for index in after if index >= 0), len(base) - 1)
        first.append([max(index, soonest) for index in after])
    return _Placed(segments=segments, base=base, first=first)


@once_for_each
def _soonest(graph: StepGraph) -> _Placed:
    """Return the updates where no gradient waits."""
    return _place(graph, find_updates(graph))


class EarlyUpdates:
    """The updates of a graph, and when each may run at the earliest."""

    def __init__(
        self, graph: StepGraph, latencies_ns: Sequence[int], least_gradient_nbytes: int | None = None
    ) -> None:
        """latencies_ns: by op id, shape (ops,).  least_gradient_nbytes: of gradients that may wait."""
        placed = _soonest(graph)
        #: Which of the updates wait, with their gradients.
        self.waiting: frozenset[int] = frozenset()
        if least_gradient_nbytes is not None:
            updates, self.waiting = with_waiting_gradients(graph, least_gradient_nbytes)
            if self.waiting:
                placed = _place(graph, updates)
        self._segments, self._base, self._first = placed.segments, placed.base, placed.first
        self._ends_ns = list(accumulate(latencies_ns[op] for op in self._base))

    def order(self, state_bytes_per_s: int | None = None, late: float = 0.0) -> tuple[OpId, ...]:
        """Return the ops with every parameter's update moved to just behind the last op that it depends on.

        Ops of the forward and the backward pass keep their order, and so do the ops of one update.
        state_bytes_per_s: a rate at which the updates' own state can come and go; each update, or part of
        one, then waits until the state of those before has had time to.  late: how much later than they could
        be gradients that wait are made, as a share of the time from then to the iteration's end.
        """
        behind: dict[int, list[OpId]] = defaultdict(list)
        clock_ns = 0
        parts = [
            (self._later(first, late) if number in self.waiting else first, *segment)
            for number, (firsts, segments) in enumerate(zip(self._first, self._segments, strict=True))
            for first, segment in zip(firsts, segments, strict=True)
        ]
        for first, ops, nbytes in sorted(parts, key=itemgetter(0)):
            at = first
            if state_bytes_per_s is not None:
                clock_ns = max(clock_ns, self._ends_ns[at])
                at = max(at, self._at(clock_ns))
                clock_ns += copy_ns(nbytes, state_bytes_per_s)
            behind[at] += ops
        order: list[OpId] = []
        for index, op in enumerate(self._base):
            order.append(op)
            order += behind[index]
        return tuple(order)

    def _later(self, index: int, late: float) -> int:
        could_ns = self._ends_ns[index]
        return max(index, self._at(could_ns + late * (self._ends_ns[-1] - could_ns)))

    def _at(self, time_ns: float) -> int:
        """Return the first op that has not ended before a time; the last op, a report, stays the last."""
        return min(bisect_left(self._ends_ns, time_ns), len(self._base) - 2)


def _last_dependencies(graph: StepGraph, number_of: Mapping[OpId, int]) -> dict[OpId, OpId]:
    """Return for the updates' ops the last op outside of all updates that each must come after, if any."""
    after: dict[OpId, OpId] = {}
    last_write: dict[TensorId, OpId] = {}
    reads: dict[TensorId, list[OpId]] = defaultdict(list)
    for op in graph.ops:
        if op.id in number_of:
            touched = [last_write[tensor] for tensor in {*op.reads, *op.writes} if tensor in last_write]
            for other in (*touched, *(read for tensor in op.writes for read in reads[tensor])):
                if other not in number_of:
                    after[op.id] = max(after.get(op.id, other), other)
        for tensor in op.values:
            reads[tensor].append(op.id)
        for tensor in op.writes:
            last_write[tensor] = op.id
            reads[tensor].clear()
    return after
