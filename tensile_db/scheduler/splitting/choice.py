"""What to split so that an op which needs too much at once needs less.

A candidate is grown from the op over the large tensors that it would have in parts: their other ops must be
split alike, or the tensors would be whole for them.  It is judged by carrying it out: by what its ops then
hold at once, and by the time that the graph takes longer.

Source: TSPLIT section IV-B, equations 5 and 6, and section IV-C, step 2 of algorithm 2.
Differs: the paper configures a single tensor, and merges it for all ops that are not split alike; what is
saved and what it takes are read off the graph that comes of a candidate, not estimated.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from tensile_db.graph import Axis, Op, OpId, Splitting, StepGraph, TensorId
from tensile_db.scheduler.bounds import needed_nbytes, untouched_nbytes
from tensile_db.scheduler.plan import DeviceSpec, Split
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.splitting.latencies import part_latencies_ns
from tensile_db.scheduler.splitting.pieces import Execute, Piece, SplitGraph, SplitOps
from tensile_db.scheduler.splitting.split_graph import changed_ops, split_graph
from tensile_db.scheduler.splitting.ways import find_splitting

#: Tensors that a candidate is grown over: those larger than such a share of what an op may hold at once.
_SHARES = (4, 16, 64)
#: Parts that are tried; a power of two each, as in the paper's evaluation.
_PARTS = (2, 4, 8, 16, 32)
#: Twice as many parts must leave no more than this share of what an op needs.
_WORTH_MORE_PARTS = 0.95
#: More splits than this are never worth what they take.
MAX_SPLITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitChoice:
    """Splits of a whole graph, and what comes of them."""

    splits: tuple[Split, ...]
    #: The most that an op concerned holds at once, in bytes.
    needed_nbytes: int
    #: What the iteration takes longer than with the splits before, copies aside.
    added_ns: int


class Splitter:
    """Looks for splits of one job's graph; keeps_bits: for those alone that change no result."""

    def __init__(self, request: JobRequest, device: DeviceSpec, *, keeps_bits: bool = False) -> None:
        self._request = request
        self._graph = request.graph
        self._device = device
        self._keeps_bits = keeps_bits
        self._touching: list[list[OpId]] = [[] for _ in self._graph.tensors]
        for op in self._graph.ops:
            for tensor in sorted({*op.reads, *op.writes}):
                self._touching[tensor].append(op.id)
        self._idle_nbytes = untouched_nbytes(request.graph)
        self._whole_ns = sum(request.latencies_ns)

    def least_nbytes(self) -> int:
        """Return a bound below what `splits_within` finds for any limit, in bytes, without looking for it.

        It is what the op needs at once, of its tensors alone, that needs most when each is split as finely as
        it may be.
        """
        return self._idle_nbytes + max(map(self._least_nbytes, self._graph.ops))

    def _least_nbytes(self, op: Op) -> int:
        nbytes = needed_nbytes(op, self._graph.tensors)
        for axis in Axis:
            way = self._way(op.id, axis)
            if way is not None:
                of_parts, of_all = self._cut_and_whole_nbytes(op.id, way)
                parts = min(_PARTS[-1], max(1, way.extent // way.unit))
                nbytes = min(nbytes, of_all + of_parts // parts)
        return nbytes

    def splits_within(
        self, limit_nbytes: int, most_nbytes: int | None = None, looks: int | None = None
    ) -> tuple[tuple[Split, ...], int]:
        """Return splits with which no op needs more than the limit at once, and the most that one needs.

        most_nbytes: what an op may need that nothing brings below the limit; default the limit.
        looks: how many ops are looked at, at most; default all that need more than the limit.
        Where there are none: those that come closest.
        """
        most_nbytes = limit_nbytes if most_nbytes is None else most_nbytes
        splits: tuple[Split, ...] = ()
        tried = {splits}
        split = split_graph(self._graph, splits)
        needs = needs_nbytes(split.graph)
        #: What no split helps, up to `most_nbytes`.
        left: set[Hashable] = set()
        while len(splits) < MAX_SPLITS and looks != 0:
            looks = None if looks is None else looks - 1
            large = [op for op, needed in enumerate(needs) if needed > limit_nbytes]
            large = [op for op in large if _about(split.pieces[op]) not in left] if left else large
            if not large:
                break
            worst = max(large, key=lambda op: (needs[op], -op))
            choice = self.find(splits, split, OpId(worst), limit_nbytes)
            if choice is not None and choice.splits not in tried:
                splits = choice.splits
                tried.add(splits)
                split = split_graph(self._graph, splits)
                needs = needs_nbytes(split.graph)
            elif needs[worst] > most_nbytes:
                break
            else:
                left.add(_about(split.pieces[worst]))
        return splits, max(needs)

    def find(
        self, splits: tuple[Split, ...], split: SplitGraph, op: OpId, limit_nbytes: int
    ) -> SplitChoice | None:
        """Return what makes an op of the split graph need less at once; None where nothing does.

        Within the limit, what adds least time; else what comes closest to it.  Tensors are kept in blocks
        only where nothing else keeps the limit.
        """
        needed = _needs_nbytes(split.graph, split.ops[op : op + 1], self._idle_nbytes)[0]
        before_ns = sum(part_latencies_ns(self._graph, split, self._request.latencies_ns, self._device))
        best: SplitChoice | None = None
        for blocks in (False, True):
            for origin in self._origins(split, op):
                for axis in Axis:
                    for ops in self._grown(origin, axis, limit_nbytes):
                        made = Split(axis=axis, parts=1, ops=ops, blocks=blocks)
                        for choice in self._in_parts(splits, origin, made, before_ns, limit_nbytes):
                            if choice.needed_nbytes < needed and _is_better(choice, best, limit_nbytes):
                                best = choice
                if best is not None:
                    break
            if best is not None and best.needed_nbytes <= limit_nbytes:
                return best
        return best

    def _origins(self, split: SplitGraph, op: OpId) -> Iterator[OpId]:
        """Yield ops of the whole graph whose splitting could help: the op itself, or who wants the copy."""
        piece = split.pieces[op]
        if isinstance(piece, Execute):
            yield piece.op
            return
        seen = set()
        for later in (*split.pieces[op + 1 :], *reversed(split.pieces[:op])):
            if isinstance(later, Execute) and any(t == piece.tensor for t, _ in later.places):
                if later.op not in seen:
                    yield later.op
                seen.add(later.op)

    def _grown(self, op: OpId, axis: Axis, limit_nbytes: int) -> Iterator[tuple[OpId, ...]]:
        """Yield the ops to be split with this one, from few to many."""
        splitting = self._way(op, axis)
        if splitting is None:
            return
        found: list[tuple[OpId, ...]] = []
        for share in _SHARES:
            ops = self._closure(op, axis, splitting.extent, max(1, limit_nbytes // share))
            if ops not in found:
                found.append(ops)
                yield ops

    def _closure(self, op: OpId, axis: Axis, extent: int, least_nbytes: int) -> tuple[OpId, ...]:
        members = {op}
        waiting = [op]
        followed: set[TensorId] = set()
        while waiting:
            splitting = self._way(waiting.pop(), axis)
            assert splitting is not None
            for tensor, cut in splitting.cuts:
                whole = self._graph.tensors[tensor]
                if tensor in followed or whole.persistent or whole.nbytes < least_nbytes:
                    continue
                followed.add(tensor)
                for other in self._touching[tensor]:
                    way = self._way(other, axis)
                    if way is None or other in members or way.extent != extent:
                        continue
                    if (tensor, cut) in way.cuts:
                        members.add(other)
                        waiting.append(other)
        return tuple(sorted(members))

    def _in_parts(
        self,
        splits: tuple[Split, ...],
        origin: OpId,
        candidate: Split,
        before_ns: int,
        limit_nbytes: int,
    ) -> Iterator[SplitChoice]:
        """Yield the candidate in more and more parts, until it keeps the limit or more do not help.

        What it meets of the splits so far is split alike.
        """
        ops, axis, blocks = candidate.ops, candidate.axis, candidate.blocks
        others: list[Split] = []
        members = set(ops)
        changed: set[OpId] = set()
        fewest = 1
        for split in splits:
            alike = split.axis is axis and self._extent(split.ops[0], axis) == self._extent(ops[0], axis)
            if alike and self._meets(split.ops, ops, axis):
                members.update(split.ops)
                fewest = max(fewest, split.parts)
                blocks = blocks or split.blocks
            elif origin in split.ops:
                # Along the other axis it needs too much still.
                left = tuple(op for op in split.ops if op not in members)
                changed.update(split.ops)
                if left:
                    others.append(replace(split, ops=left))
            else:
                members.difference_update(split.ops)
                others.append(split)
        chosen = tuple(sorted(members))

        def in_parts(parts: int) -> SplitChoice:
            new = (*others, Split(axis=axis, parts=parts, ops=chosen, blocks=blocks))
            made = changed_ops(self._graph, new, members | changed)
            return SplitChoice(
                splits=new,
                needed_nbytes=self._concerned_nbytes(made, members | changed),
                added_ns=self._time_ns(made) - before_ns,
            )

        before_nbytes: int | None = None
        for parts in self._promising(origin, axis, limit_nbytes):
            if parts < fewest:
                continue
            choice = in_parts(parts)
            if before_nbytes is not None and choice.needed_nbytes > before_nbytes * _WORTH_MORE_PARTS:
                return
            yield choice
            if choice.needed_nbytes <= limit_nbytes:
                return
            before_nbytes = choice.needed_nbytes

    def _promising(self, op: OpId, axis: Axis, limit_nbytes: int) -> Sequence[int]:
        """Return the numbers of parts with which the op's own tensors could keep the limit; else all."""
        splitting = self._way(op, axis)
        assert splitting is not None
        of_parts, of_all = self._cut_and_whole_nbytes(op, splitting)
        return [parts for parts in _PARTS if of_all + of_parts // parts <= limit_nbytes] or _PARTS

    def _cut_and_whole_nbytes(self, op: OpId, way: Splitting) -> tuple[int, int]:
        """Return what an op touches of tensors that are cut, and of those that all parts take whole."""
        cut = {tensor for tensor, _ in way.cuts}
        touched = {*self._graph.ops[op].reads, *self._graph.ops[op].writes}
        of_parts = sum(self._graph.tensors[tensor].nbytes for tensor in touched & cut)
        of_all = sum(self._graph.tensors[tensor].nbytes for tensor in touched - cut)
        return of_parts, of_all

    def _way(self, op: OpId, axis: Axis) -> Splitting | None:
        """Return how an op may be split."""
        found = find_splitting(self._graph.ops[op], axis)
        return None if found is not None and self._keeps_bits and not found.keeps_bits else found

    def _extent(self, op: OpId, axis: Axis) -> int | None:
        splitting = self._way(op, axis)
        return None if splitting is None else splitting.extent

    def _meets(self, ops: Sequence[OpId], others: Sequence[OpId], axis: Axis) -> bool:
        return bool(self._cut_tensors(ops, axis) & self._cut_tensors(others, axis))

    def _cut_tensors(self, ops: Sequence[OpId], axis: Axis) -> set[TensorId]:
        found: set[TensorId] = set()
        for op in ops:
            splitting = self._way(op, axis)
            assert splitting is not None
            found.update(tensor for tensor, _ in splitting.cuts if not self._graph.tensors[tensor].persistent)
        return found

    def _concerned_nbytes(self, made: SplitOps, members: set[OpId]) -> int:
        """Return the most that an op of the candidate, or a copy for its sake, holds at once."""
        touched = {t for op in members for t in (*self._graph.ops[op].reads, *self._graph.ops[op].writes)}

        def is_concerned(piece: Piece) -> bool:
            return piece.op in members if isinstance(piece, Execute) else piece.tensor in touched

        concerned = [op for op, piece in zip(made.ops, made.pieces, strict=True) if is_concerned(piece)]
        return max(_needs_nbytes(made, concerned, self._idle_nbytes))

    def _time_ns(self, made: SplitOps) -> int:
        """Return what all ops take, those that stay as they are, too."""
        latencies_ns = self._request.latencies_ns
        again = {piece.op for piece in made.pieces if isinstance(piece, Execute)}
        left_ns = self._whole_ns - sum(latencies_ns[op] for op in again)
        parts_ns = part_latencies_ns(self._graph, made, latencies_ns, self._device)
        return left_ns + sum(ns * count for ns, count in zip(parts_ns, made.counts, strict=True))


def _about(piece: Piece) -> Hashable:
    """Return what of the whole graph a micro-op is about: an op, or a tensor that is copied."""
    return piece.op if isinstance(piece, Execute) else ("copy", piece.tensor)


def needs_nbytes(graph: StepGraph) -> list[int]:
    """Return what each op needs at once: all that it touches, its workspace, and what no op touches."""
    return _needs_nbytes(graph, graph.ops, untouched_nbytes(graph))


def _needs_nbytes(of: StepGraph | SplitOps, ops: Sequence[Op], idle: int) -> list[int]:
    return [idle + needed_nbytes(op, of.tensors) for op in ops]


def _is_better(choice: SplitChoice, best: SplitChoice | None, limit_nbytes: int) -> bool:
    def rank(one: SplitChoice) -> tuple[int, int]:
        return max(0, one.needed_nbytes - limit_nbytes), one.added_ns

    return best is None or rank(choice) < rank(best)
