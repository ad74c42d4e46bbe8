"""Recomputation in the relaxation: which ops run again, when they may, and what must be there for that.

Source: ours; docs/planner/bound.md.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import attrgetter

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.bound.idle import Idle, chain_of
from tensile_db.scheduler.bound.linear_program import LinearProgram, Term, Variable
from tensile_db.scheduler.bound.segments import Segment, move_within
from tensile_db.scheduler.bound.whole import Whole


class Purpose(Enum):
    """What a tensor is made again for."""

    #: Its own next access.
    ITSELF = auto()
    #: Another recomputation, before which it cannot have been there.
    SHUT_OUT = auto()
    #: Another recomputation, at which all its accesses are over.
    SOURCE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeAgain:
    """A share of a tensor to be made again by a chain of ops, within [begin, end] of the segments."""

    made: TensorId
    chain: Sequence[OpId]
    share: Variable
    begin: int
    end: int


def again_in(idle: Idle, share: Variable, begin: int) -> MadeAgain:
    """Return that a share of a tensor is made again in an idle stretch, in segments from `begin` on."""
    return MadeAgain(made=idle.tensor, chain=idle.recompute, share=share, begin=begin, end=idle.returns)


@dataclass(slots=True)
class _Rerun:
    """The repeated runs of one op, which serve all that it makes."""

    #: Segments from and until which the runs may lie.
    begin: int
    end: int
    #: By tensor and purpose: shares of its separate recomputations.  Those of one key add up; between keys
    #: one run may serve both.
    shares: dict[tuple[TensorId, Purpose], list[Term]] = field(default_factory=lambda: defaultdict(list))


class Reruns:
    """The repeated runs of one relaxation's ops.

    A tensor that cannot be there while some op runs (`whole.py`) is got anew for whatever reads it again
    after that: by a copy, or by running again what makes it, which takes its own inputs.  Where the host has
    its copy from, how long it stays, and whether all that a repeated op uses has room is left out.
    """

    def __init__(
        self,
        program: LinearProgram,
        graph: StepGraph,
        segments: Sequence[Segment],
        whole: Whole,
        accesses: Sequence[Sequence[OpId]],
        sizes: Sequence[float],
    ) -> None:
        """accesses: as of `accesses_of`.  sizes: by tensor id, in the program's unit of bytes."""
        self._program = program
        self._graph = graph
        self._segments = segments
        self._whole = whole
        self._accesses = accesses
        self._sizes = sizes
        self._reruns: dict[OpId, _Rerun] = {}
        #: The share of a tensor that is got anew in a stretch that begins with this segment.
        self._got: dict[tuple[TensorId, int], Variable] = {}
        #: Whose inputs are still to be had.
        self._open: list[MadeAgain] = []

    def run(self, again: MadeAgain, purpose: Purpose) -> None:
        """Make a share of a tensor again; what this reads is got anew wherever it cannot be there already."""
        self._run(again, purpose)
        while self._open:
            self._get_inputs(self._open.pop())

    def inputs_of(self, again: MadeAgain) -> list[TensorId]:
        """Return what is read to make a tensor again of which every reader takes one value, ascending."""
        # Of which only the shape matters may be there with any value.
        inputs = {read for op in again.chain for read in self._graph.ops[op].values} - {again.made}
        return [tensor for tensor in sorted(inputs) if self._is_settled(tensor, again.chain[0])]

    def is_got(self, tensor: TensorId) -> bool:
        """Whether a tensor is got anew for other recomputations, in some stretch."""
        return any(got == tensor for got, _ in self._got)

    def add_work(self, latencies_ns: Sequence[int], unit_ns: float) -> None:
        """Add the time of all repeated runs to the segments; latencies_ns: the least, by op id."""
        for op_id, rerun in self._reruns.items():
            runs = self._program.variable()
            for shares in rerun.shares.values():
                self._program.at_most([*shares, (-1.0, runs)], 0.0)
            work = (latencies_ns[op_id] / unit_ns, runs)
            self._segments[rerun.begin].released_work.append(work)
            self._segments[rerun.end].due_work.append(work)

    def _run(self, again: MadeAgain, purpose: Purpose) -> None:
        for op in again.chain:
            rerun = self._reruns.setdefault(op, _Rerun(begin=again.begin, end=again.end))
            rerun.shares[again.made, purpose].append((1.0, again.share))
            rerun.begin, rerun.end = min(rerun.begin, again.begin), max(rerun.end, again.end)
        self._open.append(again)

    def _get_inputs(self, again: MadeAgain) -> None:
        """Get what a chain reads, wherever it cannot be there already."""
        for tensor in self.inputs_of(again):
            stretches = self._whole.between(tensor, again.begin, again.end)
            if stretches:
                got = [(-1.0, self._got_in(tensor, stretch)) for stretch in stretches]
                self._program.at_most([(1.0, again.share), *got], 0.0)

    def _is_settled(self, tensor: TensorId, by: OpId) -> bool:
        """Whether all writes of a tensor come before an op, so that it and later readers take one value.

        Persistent tensors are left out, as are empty ones.
        """
        if self._graph.tensors[tensor].persistent or not self._graph.tensors[tensor].nbytes:
            return False
        return all(op < by for op in self._accesses[tensor] if tensor in self._graph.ops[op].writes)

    def _got_in(self, tensor: TensorId, stretch: range) -> Variable:
        """Return the share of a tensor that is got anew in a stretch of segments."""
        key = (tensor, stretch.start)
        known = self._got.get(key)
        if known is not None:
            return known
        got = self._got[key] = self._program.variable(at_most=1.0)
        copied = self._program.variable(at_most=1.0)
        size = self._sizes[tensor]
        move_within(self._program, size, copied, self._segments, stretch, attrgetter("once_more"))
        ways: list[Term] = [(-1.0, copied)]
        accesses = self._accesses[tensor]
        chain = chain_of(self._graph, tensor, accesses, accesses[-1])
        if chain:
            share = self._program.variable(at_most=1.0)
            ways.append((-1.0, share))
            begin, end = stretch.start, stretch.stop - 1
            again = MadeAgain(made=tensor, chain=chain, share=share, begin=begin, end=end)
            self._run(again, Purpose.SHUT_OUT)
        self._program.at_most([(1.0, got), *ways], 0.0)
        return got
