"""Codes in the bound: in how far each tensor that can be packed is, which takes time and saves bytes.

A plan that packs a tensor makes its code behind the last write of it, lets go of it after its last access
going forward, and runs what takes it going backward with the code.  In the bound a share of it is packed,
and an op that takes its code takes that share of the time with codes; one that takes several codes takes the
less of its times with all and with none.  A code may be swapped, too, and that at other times than what it is
made from, or go and be made again with that; one that several ops take has no bytes.

Source: ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensile_db.graph import OpId, Phase, StepGraph, TensorId
from tensile_db.scheduler.bound.idle import Idle, chain_of, life
from tensile_db.scheduler.bound.linear_program import LinearProgram, Variable
from tensile_db.scheduler.bound.reruns import Again, Purpose, Reruns
from tensile_db.scheduler.bound.segments import Segment
from tensile_db.scheduler.bound.spine import Spine
from tensile_db.scheduler.bounds import time_of_ops_ns
from tensile_db.scheduler.packing.latencies import packed_latencies_ns
from tensile_db.scheduler.packing.packed_graph import known_packed_graph, packable
from tensile_db.scheduler.plan import DeviceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """How a tensor may be packed."""

    #: Of the code; 0 where several ops take it.
    nbytes: int
    pack_ns: int
    #: The last op that writes the tensor, and those that take the code, at least one.
    made_by: OpId
    taken_by: tuple[OpId, ...]
    #: What each of these takes less with the code; negative where it takes more.
    saved_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Codes:
    """What can be packed in a graph, and what becomes of its ops then."""

    #: By tensor, ascending.
    codings: Mapping[TensorId, Coding]
    #: By op id, with nothing packed; and with what makes it take the least.
    latencies_ns: Sequence[int]
    least_ns: Sequence[int]
    #: The graph with ops that do not read what they take the shape of alone, where codes may spare them that.
    graph: StepGraph
    #: The same with ops that read nothing of what can be packed, either.
    leanest: StepGraph


def find_codes(graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec) -> Codes:
    """Return what can be packed; latencies_ns: by op id, shape (ops,)."""
    packed = known_packed_graph(graph, tuple(packable(graph)))
    without_ns, least_ns = list(latencies_ns), list(latencies_ns)
    ops, leanest = list(graph.ops), list(graph.ops)
    packed_from = {code: tensor for tensor, code in packed.codes.items()}
    pack_ns: dict[TensorId, int] = {}
    taken_by: dict[TensorId, dict[OpId, int]] = {code: {} for code in packed.codes.values()}
    with_codes_ns = packed_latencies_ns(graph, packed, latencies_ns, device)
    for op, made_from, took_ns in zip(packed.graph.ops, packed.ops, with_codes_ns, strict=True):
        if made_from is None:
            pack_ns[op.writes[0]] = took_ns
            continue
        codes = [tensor for tensor in op.reads if tensor in taken_by]
        least_ns[made_from] = min(latencies_ns[made_from], took_ns)
        if len(codes) > 1:
            without_ns[made_from] = least_ns[made_from]
        for code in codes:
            taken_by[code][made_from] = latencies_ns[made_from] - took_ns if len(codes) == 1 else 0
        of_codes = {packed_from[code] for code in codes}
        reads = tuple(tensor for tensor in op.reads if tensor not in taken_by)
        whole = ops[made_from] = replace(
            ops[made_from], reads=tuple(sorted({*reads, *of_codes})), shapes=op.shapes
        )
        leanest[made_from] = replace(whole, reads=reads, codes=op.codes)
    last_write = {tensor: op.id for op in graph.ops for tensor in op.writes}
    codings = {
        tensor: Coding(
            nbytes=packed.graph.tensors[code].nbytes if len(taken_by[code]) == 1 else 0,
            pack_ns=pack_ns[code],
            made_by=last_write[tensor],
            taken_by=tuple(taken_by[code]),
            saved_ns=tuple(taken_by[code].values()),
        )
        for tensor, code in sorted(packed.codes.items())
        if taken_by[code]
    }
    return Codes(
        codings=codings,
        latencies_ns=without_ns,
        least_ns=least_ns,
        graph=replace(graph, ops=tuple(ops)),
        leanest=replace(graph, ops=tuple(leanest)),
    )


def least_ops_ns(graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec) -> int:
    """Return the least time that the ops take, whatever is packed: codes cost time, and save some."""
    packed = known_packed_graph(graph, tuple(packable(graph)))
    with_codes_ns = packed_latencies_ns(graph, packed, latencies_ns, device)
    saved_ns = dict.fromkeys(packed.codes.values(), 0)
    for op, made_from, took_ns in zip(packed.graph.ops, packed.ops, with_codes_ns, strict=True):
        if made_from is None:
            saved_ns[op.writes[0]] -= took_ns
            continue
        for code in saved_ns.keys() & set(op.reads):
            saved_ns[code] += latencies_ns[made_from] - took_ns
    return time_of_ops_ns(latencies_ns) - sum(max(0, saved) for saved in saved_ns.values())


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
        unit_nbytes: float,
        unit_ns: float,
    ) -> None:
        """unit_nbytes, unit_ns: what copies and work count."""
        self._program = program
        self._graph = graph
        self._codings = codings
        self._segments = segments
        self._spine = spine
        self._reruns = reruns
        self._unit_nbytes = unit_nbytes
        self._unit_ns = unit_ns

    def add(self, tensor: TensorId, accesses: Sequence[OpId], found: Sequence[Idle]) -> Variable | None:
        """Return the share of a tensor that is packed: it is away from its last access going forward on.

        accesses: as of `accesses_of`; found: its idle stretches.  None where it cannot be packed.
        """
        coding = self._codings.get(tensor)
        if coding is None:
            return None
        share = self._share_of(coding)
        behind = [idle for idle in found if self.is_behind(idle)]
        if behind:
            away = (self._size(tensor) - self._code_size(tensor), share)
            _, end = life(self._graph, self._spine, tensor, accesses)
            self._segments[min(idle.first for idle in behind)].recomputed.append(away)
            self._segments[end].recomputed.append((-away[0], share))
            self._add_absence(tensor, share, accesses, behind)
        work = (coding.pack_ns / self._unit_ns, share)
        due = min(self._spine.ceiling[op] for op in coding.taken_by)
        self._segments[2 * self._spine.floor[coding.made_by] + 2].released_work.append(work)
        self._segments[2 * due].due_work.append(work)
        return share

    def _add_absence(
        self, tensor: TensorId, share: Variable, accesses: Sequence[OpId], behind: Sequence[Idle]
    ) -> None:
        """Let the code of what is packed be away until it is taken."""
        coding, size = self._codings[tensor], self._code_size(tensor)
        first = min(idle.first for idle in behind)
        returns = 2 * min(self._spine.ceiling[op] for op in coding.taken_by)
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
            again = Again(made=tensor, chain=chain, share=made, begin=begin, end=returns)
            self._reruns.run(again, Purpose.ITSELF)
        self._program.at_most(away, 0.0)

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

    def _size(self, tensor: TensorId) -> float:
        return self._graph.tensors[tensor].nbytes / self._unit_nbytes

    def _code_size(self, tensor: TensorId) -> float:
        # What is left out of the relaxation has no bytes.
        return min(self._codings[tensor].nbytes / self._unit_nbytes, self._size(tensor))

    def may_be(self, tensor: TensorId) -> bool:
        """Whether a tensor can be packed."""
        return tensor in self._codings

    def is_behind(self, idle: Idle) -> bool:
        """Whether a stretch lies behind a tensor's last access going forward."""
        return self._graph.ops[idle.until].phase is not Phase.FORWARD
