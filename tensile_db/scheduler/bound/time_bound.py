"""A lower bound on the iteration time of every plan that keeps within a budget.

A relaxation, solved as a linear program.  The plans that it covers run the ops in any order that their
dependences allow, in-place updates in place.  A tensor that is away comes back by a copy, by recomputation,
or because it is overwritten; copies are of whole tensors, and the one to the host begins after the access
before the absence and is paid for once between two writes.  The iteration is a cycle.  The peak is the
timeline's: a tensor counts from the start of its copy to the device, and until the end of its copy to the
host.  Tensors may be packed (`codes.py`).  Not covered are ops split into parts.

What is relaxed, each to a plan's advantage:

- Tensors may be away in part, copied, recomputed and packed in part, where there may be room for them; where
  there is none, they are away as wholes (`whole.py`).
- Copies are counted by channel, not by tensor: whatever has left by an instant may serve for what must be
  away there.  Both channels keep to their releases and deadlines.
- The footprint is held to the budget at the starts and ends of the spine's ops only (`spine.py`); accesses
  off the spine lie where it suits the plan best (`idle.py`).
- A recomputation takes the time of the ops that make the tensor, once for all that they make; their inputs
  are there, but for those that cannot be (`reruns.py`), or that nothing else needs any more (`sources.py`).
- Tensors so small that together they hardly count are free.

Source: ours; docs/planner/bound.md.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from tensile_db.errors import DoesNotFit
from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.bound.codes import Codes, find_codes, least_ops_ns
from tensile_db.scheduler.bound.idle import Idle, accesses_of, alive_nbytes, find_idle, overlaps
from tensile_db.scheduler.bound.linear_program import LinearProgram, Term, Variable
from tensile_db.scheduler.bound.packed_shares import PackedShares
from tensile_db.scheduler.bound.reruns import Purpose, Reruns, again_in
from tensile_db.scheduler.bound.segments import Segment, move_within
from tensile_db.scheduler.bound.sources import Sources
from tensile_db.scheduler.bound.spine import Spine, fixed_spine, longest_spine
from tensile_db.scheduler.bound.whole import Whole, Window
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.plan import DeviceSpec

#: The smallest tensors that together have this share of the budget are left out.
_NEGLIGIBLE = 2e-4
#: What the solver's tolerances may be worth, as a share of the time.
_TOLERANCE = 1e-6
#: Copies of idle stretches that may run in more segments are counted by channel only: a variable for each in
#: each makes the program take a minute to solve, and hardly changes its optimum.
_FEW_SEGMENTS = 40
_NS_PER_S = 1_000_000_000


def lower_bound_time_ns(
    graph: StepGraph,
    latencies_ns: Sequence[int],
    device: DeviceSpec,
    budget_nbytes: int,
    *,
    order: Sequence[OpId] | None = None,
) -> int:
    """Return a time, in ns, that no plan whose peak is within the budget can undercut.

    latencies_ns: by op id, shape (ops,).  order: bound only the plans that run the ops in this order.  Takes
    seconds for a thousand ops.  Raises DoesNotFit where no plan keeps within the budget.
    """
    ops_ns = least_ops_ns(graph, latencies_ns, device)
    codes = find_codes(graph, latencies_ns, device)
    graph, latencies_ns = codes.graph, codes.latencies_ns
    least_nbytes = lower_bound_peak_nbytes(codes.leanest)
    if budget_nbytes < least_nbytes:
        raise DoesNotFit(needed_nbytes=least_nbytes, budget_nbytes=budget_nbytes)
    spine = longest_spine(graph, latencies_ns) if order is None else fixed_spine(order)
    relaxation = _Relaxation(_without_negligible(graph, budget_nbytes), codes, device, budget_nbytes, spine)
    if not relaxation.is_tight:
        return ops_ns
    # Periods are whole nanoseconds.
    return max(ops_ns, ceil(relaxation.solve_ns() * (1 - _TOLERANCE)))


def _without_negligible(graph: StepGraph, budget_nbytes: int) -> StepGraph:
    """Return the graph with its smallest tensors empty."""
    left_nbytes = _NEGLIGIBLE * budget_nbytes
    empty: set[TensorId] = set()
    for tensor in sorted(graph.tensors, key=lambda tensor: (tensor.nbytes, tensor.id)):
        left_nbytes -= tensor.nbytes
        if left_nbytes < 0:
            break
        empty.add(tensor.id)
    tensors = tuple(replace(t, nbytes=0) if t.id in empty else t for t in graph.tensors)
    return StepGraph(tensors=tensors, ops=graph.ops)


class _Relaxation:
    """The linear program of one graph and budget."""

    def __init__(
        self,
        graph: StepGraph,
        codes: Codes,
        device: DeviceSpec,
        budget_nbytes: int,
        spine: Spine,
    ) -> None:
        self._graph = graph
        latencies_ns = self._latencies_ns = codes.latencies_ns
        self._least_ns = codes.least_ns
        self._device = device
        self._budget_nbytes = budget_nbytes
        self._spine = spine
        self._alive_nbytes: NDArray[np.int64] = alive_nbytes(graph, spine)
        over = self._alive_nbytes > budget_nbytes
        #: How many instants before each one are over the budget.
        self._over_before = np.concatenate(([0], np.cumsum(over)))
        self.is_tight = bool(over.any())
        # Units in which most figures are neither large nor small, as solvers like it.
        self._unit_ns = max(1.0, sum(latencies_ns) / len(latencies_ns))
        self._unit_nbytes = max(1.0, float(self._alive_nbytes.max()) / 1000)
        #: By tensor id.
        self._sizes = [tensor.nbytes / self._unit_nbytes for tensor in graph.tensors]
        self._program = LinearProgram()
        self._segments = [Segment() for _ in range(len(self._alive_nbytes))]
        self._accesses = accesses_of(graph, spine)
        leanest = StepGraph(tensors=graph.tensors, ops=codes.leanest.ops)
        self._whole = Whole(graph, leanest, spine, budget_nbytes, self._accesses)
        self._reruns = Reruns(
            self._program, leanest, self._segments, self._whole, self._accesses, self._sizes
        )
        self._sources = Sources(
            self._program, leanest, self._segments, spine, self._accesses, self._reruns, self._sizes
        )
        self._packed = PackedShares(
            self._program,
            graph,
            codes.codings,
            self._segments,
            spine,
            self._reruns,
            self._sizes,
            self._unit_nbytes,
            self._unit_ns,
        )
        #: Bytes of absences that go over the iteration's end.
        self._wrapping: list[Term] = []

    def solve_ns(self) -> float:
        """Return the least period, in ns."""
        for tensor in self._graph.tensors:
            # A tensor of no bytes may be packed to save time.
            if tensor.nbytes or self._packed.may_be(tensor.id):
                self._add_tensor(tensor.id, self._accesses[tensor.id])
        self._sources.add()
        self._add_work()
        self._add_segments()
        spine_ns = sum(self._latencies_ns[op] for op in self._spine.ops)
        return self._program.minimum() * self._unit_ns + spine_ns

    def _add_tensor(self, tensor: TensorId, accesses: Sequence[OpId]) -> None:
        """Add a share by which a tensor is away, in each of its idle stretches that matter."""
        swapped: dict[Idle, Variable] = {}
        paid: dict[int, list[Term]] = defaultdict(list)
        found = find_idle(self._graph, self._spine, tensor, accesses)
        # A stretch in which memory is ample may pay for the copy to the host of another of its epoch.
        mattering = {idle for idle in found if self._matters(idle)}
        epochs = {idle.epoch for idle in mattering} - {None}
        packed = self._packed.add(tensor, accesses, found)
        for idle in found:
            if idle not in mattering and idle.epoch not in epochs:
                continue
            share = self._program.variable(at_most=1.0)
            swapped[idle] = share
            window = self._whole.window(idle)
            self._add_swap(idle, share, paid, window)
            away = [(1.0, share)]
            if idle in mattering and (idle.recompute or idle.is_dead):
                freed = self._program.variable(at_most=1.0)
                away.append((1.0, freed))
                self._add_recomputation(idle, freed, window)
                if idle.epoch is not None:
                    # What is made again may be copied to the host before the stretch ends.
                    paid[idle.epoch].append((-1.0, freed))
            if packed is not None and self._packed.is_behind(idle):
                away.append((1.0, packed))
            if len(away) > 1:
                self._program.at_most(away, 1.0)
            if window is not None:
                self._program.at_most(_negative(away), -1.0)
        for begin, end in overlaps(self._graph, self._spine, tensor, accesses):
            both = [
                share
                for idle, share in swapped.items()
                for at in (idle.returns == end, idle.leaves == begin)
                if at
            ]
            if len(both) > 1:
                twice = self._program.variable(at_most=1.0)
                self._program.at_most([*((1.0, share) for share in both), (-1.0, twice)], 1.0)
                self._segments[begin].doubled.append((self._sizes[tensor], twice))
                self._segments[end].doubled.append((-self._sizes[tensor], twice))

    def _add_swap(
        self, idle: Idle, share: Variable, paid: dict[int, list[Term]], window: Window | None
    ) -> None:
        size = self._sizes[idle.tensor]
        leaving, returning = self._segments[idle.leaves], self._segments[idle.returns]
        leaving.vanish.append((size, share))
        returning.due.append((size, share))
        if idle.wraps:
            self._wrapping.append((size, share))
        if window is not None and len(window.ins) <= _FEW_SEGMENTS:
            move_within(self._program, size, share, self._segments, window.ins, attrgetter("own_into"))
        if idle.epoch is None:
            return
        copied = self._program.variable(at_most=1.0)
        self._program.at_most([(1.0, copied), (-1.0, share)], 0.0)
        leaving.leave.append((size, copied))
        leaving.vanish.append((-size, copied))
        outs = window.outs if window is not None else self._whole.around(idle)
        if 0 < len(outs) <= _FEW_SEGMENTS:
            move_within(self._program, size, copied, self._segments, outs, attrgetter("own_out"))
        # By now, this stretch or an earlier one since the last write has paid for the copy to the host.
        paid[idle.epoch].append((-1.0, copied))
        self._program.at_most([(1.0, share), *paid[idle.epoch]], 0.0)

    def _add_recomputation(self, idle: Idle, share: Variable, window: Window | None) -> None:
        size = self._sizes[idle.tensor]
        self._segments[idle.first].recomputed.append((size, share))
        self._segments[idle.last].recomputed.append((-size, share))
        if idle.is_dead:
            return
        # An absence that helps is not over before the first instant that is over the budget.
        helps = int(np.searchsorted(self._over_before, self._over_before[idle.first] + 1)) - 1
        begin = helps + 1 + (helps + 1) % 2
        self._sources.note(idle, again_in(idle, share, begin))
        if window is not None:
            # After the first op that shuts it out: made again, it may be copied to the host before the last.
            begin = max(begin, window.outs[-1] + 2)
        self._reruns.run(again_in(idle, share, begin), Purpose.ITSELF)

    def _matters(self, idle: Idle) -> bool:
        """Whether the footprint is over the budget at some instant at which the tensor may be away."""
        over = self._over_before
        if idle.wraps:
            return bool(over[-1] - over[min(idle.leaves, len(over) - 1)] + over[idle.returns] > 0)
        return idle.first < idle.last and bool(over[idle.last] > over[idle.first])

    def _add_work(self) -> None:
        """Add the ops off the spine, and the recomputations: each runs somewhere between two segments."""
        for op in self._graph.ops:
            if not self._spine.has(op.id):
                latency_ns = self._latencies_ns[op.id]
                self._segments[2 * self._spine.floor[op.id] + 2].released_work_ns += latency_ns
                self._segments[2 * self._spine.ceiling[op.id]].due_work_ns += latency_ns
        self._reruns.add_work(self._least_ns, self._unit_ns)

    def _add_segments(self) -> None:
        """Add what flows through the iteration; at its end everything is as it was at its start."""
        new = self._program.variable
        #: Bytes that may leave and have not; that are on the host; that are back and need not be yet.
        first = waiting, absent, back = new(), new(), new()
        self._program.equal([*((1.0, held) for held in first), *_negative(self._wrapping)], 0.0)
        recomputed = doubled = pending = done_early = None
        for index, segment in enumerate(self._segments):
            out, into = new(), new()
            outs, ins = [(1.0, out), *segment.own_out], [(1.0, into), *segment.own_into]
            waiting = self._next(waiting, [*_negative(outs), *segment.leave])
            absent = self._next(absent, [*outs, *_negative(ins), *segment.vanish])
            back = self._next(back, [*ins, *_negative(segment.due)])
            ins += segment.once_more
            recomputed = self._next(recomputed, segment.recomputed)
            doubled = self._next(doubled, segment.doubled)
            self._program.at_most([(1.0, doubled), (-1.0, waiting), (-1.0, back)], 0.0)
            if index % 2:
                op_ns = self._latencies_ns[self._spine.ops[index // 2]]
                self._add_channels(outs, ins, segment.saved_time, op_ns)
            else:
                duration, work = new(cost=1.0), new()
                self._program.at_most([(1.0, work), (-1.0, duration)], 0.0)
                pending = self._next(
                    pending, [(-1.0, work), *segment.released_work], segment.released_work_ns / self._unit_ns
                )
                done_early = self._next(
                    done_early,
                    [(1.0, work), *_negative(segment.due_work)],
                    -segment.due_work_ns / self._unit_ns,
                )
                self._add_channels(outs, ins, [(-1.0, duration)], 0)
            above_nbytes = int(self._alive_nbytes[index]) - self._budget_nbytes
            if above_nbytes > 0:
                self._program.at_most([(-1.0, absent), (-1.0, recomputed)], -above_nbytes / self._unit_nbytes)
        for begin, end in zip(first, (waiting, absent, back), strict=True):
            self._program.equal([(1.0, begin), (-1.0, end)], 0.0)

    def _next(self, level: Variable | None, changes: Sequence[Term], change: float = 0.0) -> Variable:
        """Return a level after changes; no level is ever negative, and None is 0."""
        if level is not None and not changes and not change:
            return level
        after = self._program.variable()
        before = [] if level is None else [(1.0, level)]
        self._program.equal([(1.0, after), *_negative([*before, *changes])], change)
        return after

    def _add_channels(
        self, outs: Sequence[Term], ins: Sequence[Term], less: Sequence[Term], fixed_ns: int
    ) -> None:
        """Keep a segment's copies within its time: `fixed_ns` but for what these terms come to."""
        out_time = self._copy_time(self._device.d2h_bytes_per_s)
        in_time = self._copy_time(self._device.h2d_bytes_per_s)
        to_host = [(nbytes * out_time, variable) for nbytes, variable in outs]
        to_device = [(nbytes * in_time, variable) for nbytes, variable in ins]
        for copies in (to_host, to_device) if self._device.duplex else ([*to_host, *to_device],):
            self._program.at_most([*copies, *less], fixed_ns / self._unit_ns)

    def _copy_time(self, bytes_per_s: int) -> float:
        return self._unit_nbytes * _NS_PER_S / bytes_per_s / self._unit_ns


def _negative(terms: Sequence[Term]) -> list[Term]:
    return [(-coefficient, variable) for coefficient, variable in terms]
