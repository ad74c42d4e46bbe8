"""What every order of a graph's ops has in common: which op comes before which, and a spine through them all.

A spine is a chain of ops of which each depends on the one before, so that every order runs them in the same
sequence.  Any other op runs somewhere between two of them: after its floor, before its ceiling.

Time is cut at the starts and ends of the spine's m ops into *segments*: segment 2j is what lies before op j
(other ops, recomputations, stalls), segment 2j + 1 the op itself, segment 2m what lies after the last one.
*Instant* k is the end of segment k: op j's are 2j and 2j + 1, its start and its end, and at both all that it
uses is there.

Ops depend on each other through storages: a read comes after the last write, a write after the last write and
the reads of what it overwrites (in-place updates stay in place).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tensile_db.graph import OpId, StepGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Spine:
    """A chain of ops, and the place of every op relative to it."""

    ops: tuple[OpId, ...]
    #: By op id: the index of the last op of the spine that runs before it or is it; -1 where there is none.
    floor: tuple[int, ...]
    #: By op id: the index of the first op of the spine that runs after it or is it; len(ops) where there is
    #: none.
    ceiling: tuple[int, ...]

    def has(self, op: OpId) -> bool:
        """Whether an op is one of the spine's."""
        return self.floor[op] == self.ceiling[op]

    def begun_from(self, ops: Sequence[OpId]) -> int:
        """Return the first instant at which an order may have begun one of these ops."""
        return min(2 * self.floor[op] + (0 if self.has(op) else 2) for op in ops)

    def over_at(self, ops: Sequence[OpId]) -> int:
        """Return the first instant by which every order has left all of these ops behind."""
        return max(2 * self.ceiling[op] + (2 if self.has(op) else 0) for op in ops)


def predecessors(graph: StepGraph) -> tuple[tuple[OpId, ...], ...]:
    """Return, by op id, the ops that must have run before it; what follows from others may be left out."""
    last_write: dict[int, OpId] = {}
    reads_since: dict[int, list[OpId]] = {}
    found = []
    for op in graph.ops:
        before = {last_write[tensor] for tensor in op.values if tensor in last_write}
        for tensor in op.writes:
            before.update(reads_since.get(tensor, ()))
            if tensor in last_write:
                before.add(last_write[tensor])
        for tensor in op.values:
            reads_since.setdefault(tensor, []).append(op.id)
        for tensor in op.writes:
            last_write[tensor] = op.id
            reads_since[tensor] = []
        found.append(tuple(sorted(before)))
    return tuple(found)


def longest_spine(graph: StepGraph, latencies_ns: Sequence[int]) -> Spine:
    """Return the spine that takes the most time; ties break on op ids.

    latencies_ns: by op id, shape (ops,).
    """
    before = predecessors(graph)
    until_ns: list[int] = []
    came_from: list[OpId | None] = []
    for op in graph.ops:
        longest = max(before[op.id], key=lambda other: (until_ns[other], -other), default=None)
        came_from.append(longest)
        # An op takes some time, so that a longer chain of free ops is the longer one.
        until_ns.append((0 if longest is None else until_ns[longest]) + max(1, latencies_ns[op.id]))
    chain: list[OpId] = []
    at: OpId | None = max((op.id for op in graph.ops), key=lambda op: (until_ns[op], -op))
    while at is not None:
        chain.append(at)
        at = came_from[at]
    chain.reverse()
    return _placed(graph, chain, before)


def fixed_spine(order: Sequence[OpId]) -> Spine:
    """Return the spine of all ops, in this order: nothing may move."""
    place = {op: index for index, op in enumerate(order)}
    everywhere = tuple(place[op] for op in sorted(place))
    return Spine(ops=tuple(order), floor=everywhere, ceiling=everywhere)


def _placed(graph: StepGraph, chain: Sequence[OpId], before: Sequence[Sequence[OpId]]) -> Spine:
    index_of = {op: index for index, op in enumerate(chain)}
    floor = [-1] * len(graph.ops)
    for op in graph.ops:
        floor[op.id] = index_of.get(op.id, max((floor[other] for other in before[op.id]), default=-1))
    ceiling = [len(chain)] * len(graph.ops)
    for op in reversed(graph.ops):
        ceiling[op.id] = index_of.get(op.id, ceiling[op.id])
        for other in before[op.id]:
            ceiling[other] = min(ceiling[other], ceiling[op.id])
    return Spine(ops=tuple(chain), floor=tuple(floor), ceiling=tuple(ceiling))
