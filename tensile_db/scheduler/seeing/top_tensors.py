"""The tensors that are worth most to have away: large, and idle for long.

Source: TENSILE section IV-C (swaps hide in the idle time between two accesses); the order by bytes times idle
time is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.accesses import access_table


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleTensor:
    """A tensor and the longest stretch in which no op touches it."""

    tensor: TensorId
    #: From the end of one access to the start of the next, if nothing stalls.
    idle_ns: int
    after_op: OpId
    #: In the next iteration where the stretch goes over the iteration's end.
    before_op: OpId


def top_tensors(graph: StepGraph, latencies_ns: Sequence[int], count: int) -> tuple[IdleTensor, ...]:
    """Return the tensors of the largest bytes times idle time, at most `count`; ties break on the id.

    latencies_ns: by op id, shape (ops,); ops in eager's order.
    """
    table = access_table(graph)
    ends_ns = list(accumulate(latencies_ns))
    found = []
    for tensor in graph.tensors:
        positions = table.positions[tensor.id]
        if not positions:
            continue
        following = [*positions[1:], positions[0] + len(graph.ops)] if tensor.persistent else positions[1:]
        idle = [
            IdleTensor(
                tensor=tensor.id,
                idle_ns=_begin_ns(ends_ns, latencies_ns, after) - ends_ns[before],
                after_op=table.order[before],
                before_op=table.order[after % len(graph.ops)],
            )
            for before, after in zip(positions, following, strict=False)
        ]
        if idle:
            found.append(max(idle, key=lambda stretch: stretch.idle_ns))
    found.sort(key=lambda idle: (-idle.idle_ns * graph.tensors[idle.tensor].nbytes, idle.tensor))
    return tuple(found[:count])


def _begin_ns(ends_ns: Sequence[int], latencies_ns: Sequence[int], position: int) -> int:
    """Return when the op at a position starts, which may be in the next iteration."""
    iteration, place = divmod(position, len(ends_ns))
    return iteration * ends_ns[-1] + ends_ns[place] - latencies_ns[place]
