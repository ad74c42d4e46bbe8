"""The state of planning one job: what the device holds during each op, and the absences chosen so far.

An absence takes a tensor off the device for a stretch of ops inside one of its gaps, by a swap or by
recomputation. Everything is counted by whole ops, the way a lowered program is guaranteed: a tensor leaving
counts until the op before which its swap-out is awaited, a tensor arriving counts from the op after the one
that triggers its copy.  So `footprint` is at every op an upper bound of the simulated one, and its maximum is
the guaranteed peak.
"""

import copy
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.accesses import (
    AccessTable,
    Gap,
    access_table,
    footprint_after_activity_analysis,
    sizes_of,
)
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.analysis.stretches import Stretches


@dataclass(frozen=True, slots=True, kw_only=True)
class Absence:
    """A tensor off the device during the ops [begin, end), counted as its gap counts them (unrolled).

    Its swap-out is awaited before the op at `begin`; `begin == ops` is the iteration's end, later is not
    allowed. With `end >= ops` the tensor is on the host when an iteration starts.
    """

    gap: Gap
    begin: int
    end: int
    #: Start of the copy to the host, ns after the end of the op at `out_position`.
    out_position: int = 0
    out_delta_ns: int = 0
    #: Start of the copy to the device, ns after the end of the op at `end - 1`, or after the iteration's
    #: start.
    in_delta_ns: int = 0
    #: The ops to run again before the op at `gap.following`; empty for a swap.
    recompute: tuple[OpId, ...] = ()

    @property
    def tensor(self) -> TensorId:
        """The tensor that is away."""
        return self.gap.tensor

    @property
    def first_end(self) -> int:
        """The first end, unrolled: not before the iteration's start, nor before the copy out is awaited."""
        return max(self.begin, self.gap.ops if self.gap.wraps else 0)

    def covers(self, position: int) -> bool:
        """Whether the tensor is off the device during the op at this position."""
        return self.begin <= position < self.end or self.begin <= position + self.gap.ops < self.end

    def extended_over(self, first: int, last: int) -> "Absence":
        """Return the absence grown until it covers the ops [first, last], unrolled, of its gap.

        A copy whose place moves starts as early as it can.
        """
        begin, end = min(self.begin, first), max(self.end, last + 1)
        return replace(
            self,
            begin=begin,
            end=end,
            out_position=self.gap.previous if begin < self.begin else self.out_position,
            out_delta_ns=0 if begin < self.begin else self.out_delta_ns,
            in_delta_ns=0 if end > self.end else self.in_delta_ns,
        )


def shortest_absence(gap: Gap, first: int, last: int) -> Absence:
    """Return the shortest swap that covers the ops [first, last], unrolled, leaving as early as it can."""
    return Absence(gap=gap, begin=min(first, gap.ops), end=last + 1, out_position=gap.previous)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ground:
    """What planning in one order begins with."""

    #: By op id.
    position: dict[OpId, int]
    #: Device bytes during each op; shape (ops,).
    footprint: NDArray[np.int64]
    #: Tensor ids, largest first; ties break on the id, so that equal inputs give equal plans.
    by_size: NDArray[np.int64]
    #: The tensors' places in that order, by id.
    rank: NDArray[np.int64]
    #: First and last position at which each tensor is alive, largest first; shape (tensors,).
    alive_from: NDArray[np.int64]
    alive_to: NDArray[np.int64]


@once_for_each
def _ground_of(table: AccessTable) -> _Ground:
    sizes = sizes_of(table.graph)
    by_size = np.lexsort((np.arange(len(sizes.nbytes)), -sizes.nbytes))
    return _Ground(
        position={op: index for index, op in enumerate(table.order)},
        footprint=footprint_after_activity_analysis(table),
        by_size=by_size,
        rank=np.argsort(by_size),
        alive_from=np.where(sizes.persistent, 0, table.first)[by_size],
        alive_to=np.where(sizes.persistent, len(table.order) - 1, table.last)[by_size],
    )


class Residency:
    """One job's plan under construction."""

    def __init__(
        self, graph: StepGraph, latencies_ns: Sequence[int], order: Sequence[OpId] | None = None
    ) -> None:
        self.graph = graph
        self.table: AccessTable = access_table(graph, order)
        ground = _ground_of(self.table)
        #: By op id.
        self.position = ground.position
        # An op takes some time, however little, so that positions and times order alike.
        by_op = np.maximum(np.array(latencies_ns, dtype=np.int64), 1)
        #: By position, ns; shape (ops,).
        self.latencies_ns = by_op[np.array(self.table.order, dtype=np.int64)]
        #: Times of each op if nothing stalls, ns from the iteration's start; shape (ops,).
        self.end_ns: NDArray[np.int64] = np.cumsum(self.latencies_ns)
        self.begin_ns: NDArray[np.int64] = self.end_ns - self.latencies_ns
        #: Device bytes during each op; shape (ops,).
        self.footprint = ground.footprint.copy()
        self.absences: dict[TensorId, list[Absence]] = {}
        #: Positions where recomputations need a tensor that the op there does not touch.
        self.needed: dict[TensorId, list[int]] = {}
        #: Tensors that outlive their last access, for recomputations: the last position of each.
        self.held_until: dict[TensorId, int] = {}
        #: Tensors that stay on the device whatever happens.
        self.pinned: set[TensorId] = set()
        self._by_size = ground.by_size
        self._rank = ground.rank
        self._alive_from, self._alive_to = ground.alive_from, ground.alive_to
        self._stretches = Stretches()

    def copy(self) -> "Residency":
        """Return the same state, to go on from in another way."""
        other = copy.copy(self)
        other.footprint = self.footprint.copy()
        other.absences = {tensor: list(held) for tensor, held in self.absences.items()}
        other.needed = {tensor: list(positions) for tensor, positions in self.needed.items()}
        other.held_until = dict(self.held_until)
        other.pinned = set(self.pinned)
        other._stretches = self._stretches.copy()  # noqa: SLF001  # of its own class
        return other

    @property
    def peak_nbytes(self) -> int:
        """The guaranteed peak of what is planned so far."""
        return int(self.footprint.max())

    @property
    def peak_position(self) -> int:
        """The first op at which the peak is reached."""
        return int(self.footprint.argmax())

    def held_at(self, position: int) -> Iterator[TensorId]:
        """Yield the tensors on the device during an op, largest first (MPT of algorithm 1)."""
        for tensor in self._by_size[self._held_at(position)].tolist():
            yield TensorId(tensor)

    def is_held_at(self, position: int) -> NDArray[np.bool_]:
        """Return which tensors are on the device during an op; shape (tensors,), by id."""
        held = np.zeros(len(self._rank), dtype=bool)
        held[self._by_size[self._held_at(position)]] = True
        return held

    def swaps(self) -> list[Absence]:
        """Return the absences that are swaps."""
        return [absence for held in self.absences.values() for absence in held if not absence.recompute]

    def absence_at(self, tensor: TensorId, position: int) -> Absence | None:
        """Return the absence that covers a position, if there is one."""
        for absence in self.absences.get(tensor, ()):
            if absence.covers(position):
                return absence
        return None

    def absence_in(self, gap: Gap) -> Absence | None:
        """Return the absence within a gap, if there is one; a gap holds at most one."""
        for absence in self.absences.get(gap.tensor, ()):
            if absence.gap.previous == gap.previous:
                return absence
        return None

    def gap_at(self, tensor: TensorId, position: int) -> Gap | None:
        """Return the gap that covers a position, or None where ops or recomputations need the tensor."""
        if tensor in self.pinned:
            return None
        return self.table.gap_at(tensor, position, self.needed.get(tensor, ()))

    def add(self, absence: Absence) -> None:
        """Take a tensor off the device."""
        self.absences.setdefault(absence.tensor, []).append(absence)
        self._stretches.put((absence.tensor, absence.gap.previous), absence.begin, absence.end)
        self._charge(absence, -1)

    def replace(self, old: Absence, new: Absence) -> None:
        """Change an absence's extent."""
        held = self.absences[old.tensor]
        held[held.index(old)] = new
        self._stretches.put((new.tensor, new.gap.previous), new.begin, new.end)
        nbytes = self.graph.tensors[new.tensor].nbytes
        # Where one covers what the other does not; most begin or end alike.
        self._shift(old.begin, new.begin, nbytes)
        self._shift(old.end, new.end, -nbytes)

    def remove(self, absence: Absence) -> None:
        """Keep the tensor on the device after all."""
        self.absences[absence.tensor].remove(absence)
        self._stretches.put((absence.tensor, absence.gap.previous), 0, 0)
        self._charge(absence, 1)

    def need(self, tensor: TensorId, position: int) -> None:
        """Note that a recomputation before the op at `position` reads the tensor."""
        needed = self.needed.setdefault(tensor, [])
        if position not in needed:
            insort(needed, position)

    def hold(self, tensor: TensorId, until: int) -> None:
        """Keep a tensor beyond its last access, until the op at `until` has ended."""
        last = int(self.table.last[tensor])
        held = self.held_until.pop(tensor, last)
        nbytes = self.graph.tensors[tensor].nbytes
        self.footprint[last + 1 : until + 1] += nbytes
        self.footprint[last + 1 : held + 1] -= nbytes
        if until > last:
            self.held_until[tensor] = until

    def footprint_unheld(self) -> NDArray[np.int64]:
        """Return the footprint, shape (ops,), as if nothing were held beyond its last access."""
        footprint = self.footprint.copy()
        for tensor, until in self.held_until.items():
            footprint[self.table.last[tensor] + 1 : until + 1] -= self.graph.tensors[tensor].nbytes
        return footprint

    def is_held(self, tensor: TensorId, position: int) -> bool:
        """Whether a tensor is kept at a position that lies beyond its last access."""
        return int(self.table.last[tensor]) < position <= self.held_until.get(tensor, -1)

    def accesses(self, tensor: TensorId) -> list[int]:
        """Return the ascending positions where ops or recomputations need the tensor."""
        needed = self.needed.get(tensor)
        positions = self.table.positions[tensor]
        return sorted({*positions, *needed}) if needed else list(positions)

    def is_accessed_from(self, tensor: TensorId, position: int) -> bool:
        """Whether ops or recomputations need the tensor at `position` or later."""
        positions = self.table.positions[tensor]
        if positions and positions[-1] >= position:
            return True
        needed = self.needed.get(tensor)
        return needed is not None and needed[-1] >= position

    def is_accessed_at(self, tensor: TensorId, position: int) -> bool:
        """Whether the op at `position`, or a recomputation before it, needs the tensor."""
        return position in self.table.positions[tensor] or position in self.needed.get(tensor, ())

    def next_access(self, tensor: TensorId, position: int) -> int | None:
        """Return the first position from `position` on where ops or recomputations need the tensor."""
        following: list[int] = []
        for ascending in (self.table.positions[tensor], self.needed.get(tensor, ())):
            index = bisect_left(ascending, position)
            following += ascending[index : index + 1]
        return min(following, default=None)

    def retime(self, idle_ns: NDArray[np.int64]) -> None:
        """Plan with ops that begin later: idle_ns before each, shape (ops,)."""
        self.end_ns = np.cumsum(self.latencies_ns + idle_ns)
        self.begin_ns = self.end_ns - self.latencies_ns

    def charge_op(self, position: int, nbytes: int) -> None:
        """Charge what a recomputation before this op makes beside its tensor."""
        self.footprint[position] += nbytes

    def _held_at(self, position: int) -> NDArray[np.bool_]:
        """Return which tensors are on the device during an op; shape (tensors,), largest first."""
        held = (self._alive_from <= position) & (position <= self._alive_to)
        for tensor in self.held_until:
            if self.is_held(tensor, position):
                held[self._rank[tensor]] = True
        for away in self._stretches.covering(position, position + len(self.table.order)):
            held[self._rank[away]] = False
        return held

    def _charge(self, absence: Absence, sign: int) -> None:
        self._add_over(absence.begin, absence.end, sign * self.graph.tensors[absence.tensor].nbytes)

    def _shift(self, old: int, new: int, nbytes: int) -> None:
        """Add bytes to the footprint from a limit to a later one, unrolled; take them if it is earlier."""
        if old < new:
            self._add_over(old, new, nbytes)
        elif new < old:
            self._add_over(new, old, -nbytes)

    def _add_over(self, begin: int, end: int, nbytes: int) -> None:
        """Add bytes to the footprint of the ops [begin, end), unrolled."""
        ops = len(self.footprint)
        self.footprint[begin : min(end, ops)] += nbytes
        if end > ops:
            self.footprint[max(0, begin - ops) : end - ops] += nbytes
