"""Where tensors cannot be while an op of the spine runs, since there is no room for them as wholes.

A plan moves whole tensors: one that is larger than what an op leaves of the budget is not there while the op
runs, nor on its way, unless the op uses it.  So its copies to the host have only the segments up to the first
such op, and those to the device the ones from the last on.  What is made again is so after the first, and may
be copied to the host from there; what reads it in between must first get it anew.

Source: ours; docs/planner/bound.md.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.bound.idle import Idle
from tensile_db.scheduler.bound.spine import Spine
from tensile_db.scheduler.bounds import needed_nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The segments within which a tensor that has to be away is copied to the host, and back; in time."""

    outs: Sequence[int]
    ins: Sequence[int]


class Whole:
    """During which ops of a spine each tensor cannot be there, within one budget."""

    def __init__(
        self,
        graph: StepGraph,
        leanest: StepGraph,
        spine: Spine,
        budget_nbytes: int,
        accesses: Sequence[Sequence[OpId]],
    ) -> None:
        """leanest: with what the graph's ops use at least.  accesses: as of `accesses_of`."""
        self._graph = graph
        self._spine = spine
        self._accesses = accesses
        self._index = {op: index for index, op in enumerate(spine.ops)}
        self._left_nbytes: NDArray[np.int64] = np.array(
            [budget_nbytes - needed_nbytes(leanest.ops[op], graph.tensors) for op in spine.ops],
            dtype=np.int64,
        )
        self._last = 2 * len(spine.ops)
        #: By tensor, once it was asked for: indices of the ops of the spine during which it cannot be there.
        self._shut_out: dict[TensorId, list[int]] = {}

    def window(self, idle: Idle) -> Window | None:
        """Return where copies lie of a stretch in which the tensor must be away; None where it may stay."""
        if not self._is_ordered(idle.tensor):
            return None
        shut_out, first, end = self._shut_out_of(idle.tensor), idle.surely_first, idle.surely_last
        # Op j's are the instants 2j and 2j + 1.
        late = shut_out[bisect_left(shut_out, (first + 1) // 2) :]
        if not idle.wraps:
            between = late[: bisect_left(late, end // 2)]
            if not between:
                return None
            return Window(
                outs=range(idle.leaves, 2 * between[0] + 1), ins=range(2 * between[-1] + 2, idle.returns + 1)
            )
        early = shut_out[: bisect_left(shut_out, end // 2)]
        if not late and not early:
            return None
        if late:
            outs: Sequence[int] = range(idle.leaves, 2 * late[0] + 1)
        else:
            outs = [*range(idle.leaves, self._last + 1), *range(2 * early[0] + 1)]
        if early:
            ins: Sequence[int] = range(2 * early[-1] + 2, idle.returns + 1)
        else:
            ins = [*range(2 * late[-1] + 2, self._last + 1), *range(idle.returns + 1)]
        return Window(outs=outs, ins=ins)

    def around(self, idle: Idle) -> range:
        """Return the segments that an idle stretch may have at most; empty where they are not so few."""
        if idle.wraps or not self._is_ordered(idle.tensor):
            return range(0)
        return range(idle.leaves, idle.returns + 1)

    def between(self, tensor: TensorId, begin: int, end: int) -> list[range]:
        """Return the stretches of segments, of [begin, end], in each of which a tensor must be got anew.

        They lie between ops during which it cannot be there.  Empty where it may be there at `begin` already,
        or is accessed in any of them.
        """
        shut_out = self._shut_out_of(tensor)
        at = bisect_right(shut_out, (begin - 2) // 2)
        if not at:
            return []
        found: list[range] = []
        while not found or found[-1].stop < end:
            until = 2 * shut_out[at] if at < len(shut_out) else self._last
            found.append(range(2 * shut_out[at - 1] + 2, until + 1))
            if at == len(shut_out):
                break
            at += 1
        spine, first, last = self._spine, found[0].start, found[-1].stop - 1
        for op in self._accesses[tensor]:
            on_spine = spine.has(op)
            earliest = 2 * spine.floor[op] + (1 if on_spine else 2)
            latest = 2 * spine.ceiling[op] + (1 if on_spine else 0)
            if earliest <= last and latest >= first:
                return []
        return found

    def _is_ordered(self, tensor: TensorId) -> bool:
        """Whether accesses that `find_idle` takes in turn keep to that: reads of a shape alone need not."""
        if len(self._spine.ops) == len(self._graph.ops):
            return True
        return not any(tensor in self._graph.ops[op].unread for op in self._accesses[tensor])

    def _shut_out_of(self, tensor: TensorId) -> list[int]:
        known = self._shut_out.get(tensor)
        if known is None:
            small = self._left_nbytes < self._graph.tensors[tensor].nbytes
            small[[self._index[op] for op in self._accesses[tensor] if op in self._index]] = False
            known = self._shut_out[tensor] = np.flatnonzero(small).tolist()
        return known
