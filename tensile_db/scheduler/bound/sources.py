"""What recomputations in the relaxation are made of, where eager has let go of that by then.

A tensor that is made again needs what the ops that make it read.  Of these, a tensor whose accesses are all
over is a *source*: it has been held until then, comes back from the host, or is made again itself, from
sources of its own.  To hold it takes up of what is saved.

How much of it, so that no plan is charged more than it pays: a plan that makes a tensor again early holds no
source for long, but is taken to have it away for the whole stretch.  So all the sources of what is made again
are charged at most its own bytes, over its own stretch; those that serve several are charged once, over
what these stretches have in common, and what would leave little of that comes for nothing.

Source: ours; docs/planner/bound.md.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.bound.idle import Idle, chain_of
from tensile_db.scheduler.bound.linear_program import LinearProgram, Term
from tensile_db.scheduler.bound.reruns import MadeAgain, Purpose, Reruns
from tensile_db.scheduler.bound.segments import Segment
from tensile_db.scheduler.bound.spine import Spine

#: What is charged for a source may become so much less by serving one more.
_LEFT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """A share of a tensor that is made again, and what its sources may be charged."""

    again: MadeAgain
    #: Bytes, at the instants [first, last).
    nbytes: float
    first: int
    last: int


class Sources:
    """Of one relaxation's recomputations."""

    def __init__(
        self,
        program: LinearProgram,
        graph: StepGraph,
        segments: Sequence[Segment],
        spine: Spine,
        accesses: Sequence[Sequence[OpId]],
        reruns: Reruns,
        sizes: Sequence[float],
    ) -> None:
        """accesses: as of `accesses_of`.  sizes: by tensor id, in the program's unit of bytes."""
        self._program = program
        self._graph = graph
        self._segments = segments
        self._spine = spine
        self._accesses = accesses
        self._reruns = reruns
        self._sizes = sizes
        self._last_write = {tensor: op.id for op in graph.ops for tensor in op.writes}
        #: By source.
        self._needs: dict[TensorId, list[_Need]] = defaultdict(list)

    def note(self, idle: Idle, again: MadeAgain) -> None:
        """Note what is made again in an idle stretch."""
        self._note(_Need(again=again, nbytes=self._sizes[again.made], first=idle.first, last=idle.last))

    def add(self) -> None:
        """Charge for the sources of all that was noted."""
        while self._needs:
            # Whoever needs it is made after it, and has noted that by now.
            source = max(self._needs, key=lambda tensor: (self._last_write[tensor], tensor))
            needs = self._needs.pop(source)
            # What is got anew where it was shut out may serve all others, too.
            if not self._reruns.is_got(source):
                self._charge(source, needs)

    def _note(self, need: _Need) -> None:
        first_of = {
            tensor: max(self._spine.over_at(self._accesses[tensor]), need.first)
            for tensor in self._reruns.inputs_of(need.again)
        }
        sources = [tensor for tensor, first in first_of.items() if first < need.last]
        whole = sum(self._sizes[tensor] for tensor in sources)
        for tensor in sources:
            self._needs[tensor].append(
                _Need(
                    again=need.again,
                    nbytes=self._sizes[tensor] * min(1.0, need.nbytes / whole),
                    first=first_of[tensor],
                    last=need.last,
                )
            )

    def _charge(self, source: TensorId, needs: Sequence[_Need]) -> None:
        """Let a source be there for those who need it: held, copied, or made again."""
        served: list[_Need] = []
        nbytes, first, last = 0.0, 0, 0
        for need in sorted(
            needs, key=lambda need: (-need.nbytes * (need.last - need.first), need.again.made)
        ):
            if not served:
                nbytes, first, last = need.nbytes, need.first, need.last
            common = min(last, need.last) - max(first, need.first)
            if min(nbytes, need.nbytes) * common < _LEFT * nbytes * (last - first):
                continue
            nbytes, first, last = min(nbytes, need.nbytes), max(first, need.first), min(last, need.last)
            served.append(need)
        held, swapped = (self._program.variable(at_most=1.0) for _ in range(2))
        for share in (held, swapped):
            self._segments[first].recomputed.append((-nbytes, share))
            self._segments[last].recomputed.append((nbytes, share))
        begin, end = min(need.again.begin for need in served), max(need.again.end for need in served)
        # Copies to the host may have run before that, or have served the source earlier: they cost nothing.
        self._segments[first].vanish.append((nbytes, swapped))
        # Whoever is served by a copy back needs it in time, and so the first one does.
        self._segments[min(need.again.end for need in served)].due.append((nbytes, swapped))
        ways: list[Term] = [(-1.0, held), (-1.0, swapped)]
        accesses = self._accesses[source]
        chain = chain_of(self._graph, source, accesses, accesses[-1])
        if chain:
            made = self._program.variable(at_most=1.0)
            ways.append((-1.0, made))
            again = MadeAgain(made=source, chain=chain, share=made, begin=begin, end=end)
            self._reruns.run(again, Purpose.SOURCE)
            self._note(_Need(again=again, nbytes=nbytes, first=first, last=last))
        for need in served:
            self._program.at_most([(1.0, need.again.share), *ways], 0.0)
