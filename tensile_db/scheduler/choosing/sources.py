"""Sources: tensors worth holding beyond their last access, for much more can be made again from them.

The feature maps that a dense block concatenates are read for the last time when its last concatenation is
made, and are a quarter of what all of its concatenations hold, which wait for the backward pass.

Source: ours; docs/planner/auto.md.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tensile_db.graph import StepGraph, Tensor, TensorId
from tensile_db.scheduler.analysis.accesses import AccessTable, access_table
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.plan import Plan, Release

#: What is held is at most this share of what can be released for it.
_AT_MOST = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """A tensor that idles for long, made of others that have no access left when it is read again."""

    tensor: TensorId
    #: The position of the op that reads it again.
    following: int
    of: tuple[TensorId, ...]


def find_sources(residency: Residency, *, near_ns: int, least_nbytes: int) -> dict[TensorId, int]:
    """Return the sources, and the position until which each is to be held.

    near_ns: gaps that are shorter are left alone.  least_nbytes: so are smaller tensors.
    """
    tensors = residency.graph.tensors
    made = list(_made_of_gone(residency, near_ns, least_nbytes))
    groups = _Groups()
    for each in made:
        for source in each.of:
            groups.join(source, each.of[0])
    freed_nbytes: dict[TensorId, int] = defaultdict(int)
    until: dict[TensorId, int] = defaultdict(int)
    for each in made:
        freed_nbytes[groups.of(each.of[0])] += tensors[each.tensor].nbytes
        for source in each.of:
            until[source] = max(until[source], each.following)
    held_nbytes: dict[TensorId, int] = defaultdict(int)
    for source in until:
        held_nbytes[groups.of(source)] += tensors[source].nbytes
    return {
        source: last
        for source, last in sorted(until.items())
        if held_nbytes[groups.of(source)] <= _AT_MOST * freed_nbytes[groups.of(source)]
    }


def holds_sources(plan: Plan, graph: StepGraph) -> bool:
    """Return whether a plan of the graph holds tensors beyond their last access."""
    last = access_table(graph, plan.order).last
    position = {op: index for index, op in enumerate(plan.order)}
    return any(
        isinstance(event, Release) and position[event.after_op] > last[event.tensor] for event in plan.events
    )


def _made_of_gone(residency: Residency, near_ns: int, least_nbytes: int) -> Iterator[_Made]:
    graph, table = residency.graph, residency.table
    # Read one by one, lists are faster.
    begin_ns, end_ns = residency.begin_ns.tolist(), residency.end_ns.tolist()
    for tensor, passing in made_of_passing(table).items():
        if graph.tensors[tensor].nbytes < least_nbytes:
            continue
        idle_ns, following = max(
            (begin_ns[after] - end_ns[before], after) for before, after in pairwise(table.positions[tensor])
        )
        if idle_ns < near_ns:
            continue
        gone = tuple(read for read in passing if table.last[read] < following)
        if gone:
            yield _Made(tensor=tensor, following=following, of=gone)


@once_for_each
def made_of_passing(table: AccessTable) -> Mapping[TensorId, tuple[TensorId, ...]]:
    """Return, by tensor that one op can make again, what that op reads and nobody does after that tensor."""
    found = {tensor.id: _passing(table, tensor) for tensor in table.graph.tensors if not tensor.persistent}
    return {tensor: passing for tensor, passing in found.items() if passing}


def _passing(table: AccessTable, tensor: Tensor) -> tuple[TensorId, ...]:
    """Return what the op that can make a tensor again reads, and nobody does after the tensor."""
    tensors, accesses, writes = table.graph.tensors, table.positions[tensor.id], table.writes[tensor.id]
    if len(writes) != 1 or len(accesses) < 2:
        return ()
    op = table.graph.ops[table.order[writes[0]]]
    return tuple(
        read
        for read in (op.reads if op.recomputable else ())
        if not tensors[read].persistent
        and table.positions[read][-1] < accesses[-1]
        and table.writes[read]
        and table.writes[read][-1] < writes[0]
    )


class _Groups:
    """Tensors in groups, each known by one of its members."""

    def __init__(self) -> None:
        self._parent: dict[TensorId, TensorId] = {}

    def of(self, tensor: TensorId) -> TensorId:
        while (parent := self._parent.setdefault(tensor, tensor)) != tensor:
            tensor = parent
        return tensor

    def join(self, one: TensorId, other: TensorId) -> None:
        self._parent[self.of(one)] = self.of(other)
