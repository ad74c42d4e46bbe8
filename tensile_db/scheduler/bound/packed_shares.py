"""In how far each tensor that can be packed is, in the relaxation: that takes time and saves bytes.

An op that takes the code of a tensor takes the tensor's share of the time that it takes with codes.  A code
may be swapped, too, and that at other times than what it is made from, or go and be made again with that.

Source: ours; docs/planner/bound.md.
"""

from collections.abc import Mapping, Sequence

from tensile_db.graph import OpId, Phase, StepGraph, TensorId
from tensile_db.scheduler.bound.codes import Coding
from tensile_db.scheduler.bound.idle import Idle, chain_of, life
from tensile_db.scheduler.bound.linear_program import LinearProgram, Variable
from tensile_db.scheduler.bound.reruns import MadeAgain, Purpose, Reruns
from tensile_db.scheduler.bound.segments import Segment
from tensile_db.scheduler.bound.spine import Spine


class PackedShares:
    """Of one relaxation's tensors."""

    def __init__(
        self,
        program: LinearProgram,
        graph: StepGraph,
        codings: Mapping[TensorId, Coding],
        segments: Sequence[Segment],
        spine: Spine,
        reruns: Reruns,
        sizes: Sequence[float],
        unit_nbytes: float,
        unit_ns: float,
    ) -> None:
        """sizes: by tensor id, in `unit_nbytes`.  unit_nbytes, unit_ns: what copies and work count."""
        self._program = program
        self._graph = graph
        self._codings = codings
        self._segments = segments
        self._spine = spine
        self._reruns = reruns
        self._sizes = sizes
        self._unit_nbytes = unit_nbytes
        self._unit_ns = unit_ns

    def may_be(self, tensor: TensorId) -> bool:
        """Whether a tensor can be packed."""
        return tensor in self._codings

    def is_behind(self, idle: Idle) -> bool:
        """Whether a stretch of a tensor that can be packed lies behind the last op that takes it whole."""
        # What takes the code lies behind that, and so does all that does not go forward.
        if idle.until in self._codings[idle.tensor].taken_by:
            return True
        return self._graph.ops[idle.until].phase is not Phase.FORWARD

    def add(self, tensor: TensorId, accesses: Sequence[OpId], found: Sequence[Idle]) -> Variable | None:
        """Return the share of a tensor that is packed: it is away from the last op on that takes it whole.

        accesses: as of `accesses_of`; found: its idle stretches.  None where it cannot be packed.
        """
        coding = self._codings.get(tensor)
        if coding is None:
            return None
        share = self._share_of(coding)
        returns = 2 * min(self._spine.ceiling[op] for op in coding.taken_by)
        behind = [idle for idle in found if self.is_behind(idle)]
        if behind:
            first = min(idle.first for idle in behind)
            away = (self._sizes[tensor] - self._code_size(tensor), share)
            _, end = life(self._graph, self._spine, tensor, accesses)
            self._segments[first].recomputed.append(away)
            self._segments[end].recomputed.append((-away[0], share))
            self._add_absence(tensor, share, accesses, first, returns)
        work = (coding.pack_ns / self._unit_ns, share)
        self._segments[2 * self._spine.floor[coding.made_by] + 2].released_work.append(work)
        self._segments[returns].due_work.append(work)
        return share

    def _share_of(self, coding: Coding) -> Variable:
        """Return the share of a tensor that is packed, which what takes its code takes less time by."""
        taken = list(zip(coding.taken_by, coding.saved_ns, strict=True))
        on_spine_ns = sum(saved_ns for op, saved_ns in taken if self._spine.has(op))
        share = self._program.variable(at_most=1.0, cost=-on_spine_ns / self._unit_ns)
        for op, saved_ns in taken:
            saved = (saved_ns / self._unit_ns, share)
            if self._spine.has(op):
                self._segments[2 * self._spine.floor[op] + 1].saved_time.append(saved)
            else:
                less = (-saved[0], share)
                self._segments[2 * self._spine.floor[op] + 2].released_work.append(less)
                self._segments[2 * self._spine.ceiling[op]].due_work.append(less)
        return share

    def _add_absence(
        self, tensor: TensorId, share: Variable, accesses: Sequence[OpId], first: int, returns: int
    ) -> None:
        """Let the code of what is packed be away until it is taken.

        first, returns: segments from whose start on, and until whose end, it may be.
        """
        coding, size = self._codings[tensor], self._code_size(tensor)
        if not size or first >= returns:
            return
        swapped = self._program.variable(at_most=1.0)
        # It may have left before, or what it is made from may have: copies to the host cost nothing.
        self._segments[first].vanish.append((size, swapped))
        self._segments[returns].due.append((size, swapped))
        away = [(1.0, swapped), (-1.0, share)]
        chain = chain_of(self._graph, tensor, accesses, coding.made_by)
        if chain:
            made = self._program.variable(at_most=1.0)
            away.append((1.0, made))
            self._segments[first].recomputed.append((size, made))
            self._segments[returns].recomputed.append((-size, made))
            begin = 2 * self._spine.floor[coding.made_by] + 2
            again = MadeAgain(made=tensor, chain=chain, share=made, begin=begin, end=returns)
            self._reruns.run(again, Purpose.ITSELF)
        self._program.at_most(away, 0.0)

    def _code_size(self, tensor: TensorId) -> float:
        # What is left out of the relaxation has no bytes.
        return min(self._codings[tensor].nbytes / self._unit_nbytes, self._sizes[tensor])
