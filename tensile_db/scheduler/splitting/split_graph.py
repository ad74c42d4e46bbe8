"""Ops split into micro-ops and tensors into micro-tensors: a graph made from a graph.

A split names ops, an axis and a number of parts.  Its ops that follow each other are run part by part, all of
them on the first part, then all on the second, so that what they hand on is never there as a whole.  A tensor
that such ops alone write becomes micro-tensors for all its life.  Whoever else needs it whole gets it merged;
what they share as a whole is read, and updated, through windows where these lie in one piece, else copied.
The result is an ordinary graph: planned, proven, simulated and executed like any other.

Source: TSPLIT sections III-A and V-A (sTensor, merge and split, in-place split).
Differs: the paper splits op by op; here consecutive ops go part by part.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import lcm

from tensile_db.graph import Axis, Cut, Op, OpId, Phase, Role, Splitting, StepGraph, Tensor, TensorId
from tensile_db.scheduler.plan import Split
from tensile_db.scheduler.splitting.pieces import (
    Accumulate,
    Allocate,
    Copy,
    Execute,
    Piece,
    Place,
    Range,
    SplitGraph,
)
from tensile_db.scheduler.splitting.runs import Run, runs_of

EMPTY, CLONE, COPY, ADD = (
    "aten.empty_strided.default",
    "aten.clone.default",
    "aten.copy_.default",
    "aten.add_.Tensor",
)


def find_splitting(op: Op, axis: Axis) -> Splitting | None:
    """Return how an op is split along an axis, or None where it cannot be."""
    return next((splitting for splitting in op.splittings if splitting.axis is axis), None)


def part_ranges(graph: StepGraph, split: Split) -> tuple[tuple[int, int], ...]:
    """Return the half-open range of each part of a split; fewer parts where there are not so many units."""
    found = [find_splitting(graph.ops[op], split.axis) for op in split.ops]
    splittings = [splitting for splitting in found if splitting is not None]
    assert len(splittings) == len(split.ops), "every op of a split can be split along its axis"
    extents = {splitting.extent for splitting in splittings}
    assert len(extents) == 1, "the ops of a split have one extent"
    (extent,) = extents
    unit = lcm(*(splitting.unit for splitting in splittings))
    units = max(1, extent // unit)
    parts = min(split.parts, units)
    bounds = [units * part // parts * unit for part in range(parts)] + [extent]
    return tuple(pairwise(bounds))


def split_graph(graph: StepGraph, splits: Sequence[Split]) -> SplitGraph:
    """Return the graph with the splits carried out; no op is in two of them."""
    return _Rewriting(graph, splits).run()


class _Rewriting:
    def __init__(self, graph: StepGraph, splits: Sequence[Split]) -> None:
        self._graph = graph
        self._splits = splits
        self._ranges = [part_ranges(graph, split) for split in splits]
        self._number = {op: number for number, split in enumerate(splits) for op in split.ops}
        assert len(self._number) == sum(len(split.ops) for split in splits), "an op is split once"
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._pieces: list[Piece] = []
        #: Of tensors that are micro-tensors: the split, and how they are cut.
        self._parted = _parted(graph, splits, self._number)
        self._part: dict[tuple[TensorId, int], TensorId] = {}
        self._whole: dict[TensorId, TensorId] = {}
        for tensor in graph.tensors:
            if tensor.id in self._parted:
                number, cut = self._parted[tensor.id]
                for part, (begin, end) in enumerate(self._ranges[number]):
                    self._part[tensor.id, part] = self._add_part(tensor, Range(cut=cut, begin=begin, end=end))
            else:
                self._whole[tensor.id] = self._add_tensor(tensor)
        #: Whole tensors that have storage.
        self._made = {self._whole[t.id] for t in graph.tensors if t.persistent}
        #: Micro-tensors merged, as long as they are not written, by the phase they are merged in.
        self._merged: dict[tuple[TensorId, Phase], TensorId] = {}

    def run(self) -> SplitGraph:
        for block in runs_of(self._graph, self._splits, self._number):
            if isinstance(block, Run):
                self._split_run(block)
            else:
                self._whole_op(self._graph.ops[block])
        graph = StepGraph(tensors=tuple(self._tensors), ops=tuple(self._ops))
        return SplitGraph(graph=graph, pieces=tuple(self._pieces), whole=self._whole)

    def _whole_op(self, op: Op) -> None:
        places = {t: self._find_whole(t, op.phase) for t in sorted({*op.reads, *op.writes})}
        self._execute(op, None, 0, places, share=None)
        self._forget_merged(op.writes)

    def _split_run(self, run: Run) -> None:
        ops = [self._graph.ops[op] for op in run.ops]
        split = self._splits[run.split]
        splittings = [find_splitting(op, split.axis) for op in ops]
        last_write = {tensor: op.id for op in ops for tensor in op.writes}
        for op, splitting in zip(ops, splittings, strict=True):
            assert splitting is not None
            cuts = dict(splitting.cuts)
            for tensor in op.reads:
                # Before the run, for the parts all read it.
                if tensor in self._parted and not self._is_part_of(tensor, run.split, cuts.get(tensor)):
                    self._find_whole(tensor, op.phase)
        for part, (begin, end) in enumerate(self._ranges[run.split]):
            copies: dict[TensorId, Place] = {}
            for op, splitting in zip(ops, splittings, strict=True):
                assert splitting is not None
                self._micro_op(op, splitting, run.split, part, (begin, end), copies)
                for tensor in op.writes:
                    if tensor in copies and last_write[tensor] == op.id:
                        self._store(tensor, copies[tensor], op.phase)
        self._forget_merged(last_write)

    def _micro_op(
        self,
        op: Op,
        splitting: Splitting,
        number: int,
        part: int,
        bounds: tuple[int, int],
        copies: dict[TensorId, Place],
    ) -> None:
        cuts = dict(splitting.cuts)
        begin, end = bounds
        places: dict[TensorId, Place | None] = {}
        summands: list[TensorId] = []
        for tensor in sorted({*op.reads, *op.writes}):
            if tensor in cuts:
                own = Range(cut=cuts[tensor], begin=begin, end=end)
                places[tensor] = self._place_of_part(op, tensor, number, part, own, copies)
            elif tensor in splitting.sums and part:
                summand = self._add_tensor(self._graph.tensors[tensor], f"{self._name(tensor)}/summand{part}")
                places[tensor] = Place(tensor=summand)
                summands.append(tensor)
            elif tensor in splitting.once and part:
                places[tensor] = None
            else:
                places[tensor] = self._find_whole(tensor, op.phase)
        self._execute(op, splitting, part, places, share=(end - begin, splitting.extent))
        for tensor in summands:
            summand_place, total = places[tensor], Place(tensor=self._whole[tensor])
            assert summand_place is not None
            self._add_op(
                ADD,
                op.phase,
                reads=(summand_place.tensor, total.tensor),
                writes=(total.tensor,),
                moved_nbytes=3 * self._graph.tensors[tensor].nbytes,
                flops=0,
                piece=Accumulate(tensor=tensor, summand=summand_place, total=total),
            )

    def _place_of_part(
        self, op: Op, tensor: TensorId, number: int, part: int, own: Range, copies: dict[TensorId, Place]
    ) -> Place:
        """Return where a part of an op finds its part of a tensor; a copy of it where it must lie alone."""
        if self._is_part_of(tensor, number, own.cut):
            return Place(tensor=self._part[tensor, part], range=own, compact=True)
        if tensor in copies:
            return copies[tensor]
        if tensor not in op.reads:
            made = self._add_part(self._graph.tensors[tensor], own)
            copies[tensor] = Place(tensor=made, range=own, compact=True)
            return copies[tensor]
        source = Place(tensor=self._find_whole(tensor, op.phase).tensor, range=own)
        if own.cut.outer == 1:
            return source
        target = Place(
            tensor=self._add_part(self._graph.tensors[tensor], own, again=True), range=own, compact=True
        )
        copies[tensor] = target
        self._copy(tensor, source, target, op.phase, makes=True)
        return target

    def _is_part_of(self, tensor: TensorId, number: int, cut: Cut | None) -> bool:
        return self._parted.get(tensor) == (number, cut)

    def _find_whole(self, tensor: TensorId, phase: Phase) -> Place:
        """Return where a tensor is whole, having merged it if it is in parts."""
        if tensor not in self._parted:
            return Place(tensor=self._whole[tensor])
        if (tensor, phase) not in self._merged:
            number, cut = self._parted[tensor]
            merged = self._add_tensor(self._graph.tensors[tensor], f"{self._name(tensor)}/merged")
            self._merged[tensor, phase] = merged
            self._allocate(tensor, merged, phase)
            for part, (begin, end) in enumerate(self._ranges[number]):
                own = Range(cut=cut, begin=begin, end=end)
                source = Place(tensor=self._part[tensor, part], range=own, compact=True)
                self._copy(tensor, source, Place(tensor=merged, range=own), phase, makes=False)
        return Place(tensor=self._merged[tensor, phase])

    def _forget_merged(self, written: Sequence[TensorId] | Mapping[TensorId, OpId]) -> None:
        for key in [key for key in self._merged if key[0] in written]:
            del self._merged[key]

    def _store(self, tensor: TensorId, part: Place, phase: Phase) -> None:
        whole = self._whole[tensor]
        if whole not in self._made:
            self._allocate(tensor, whole, phase)
        self._copy(tensor, part, Place(tensor=whole, range=part.range), phase, makes=False)

    def _allocate(self, tensor: TensorId, made: TensorId, phase: Phase) -> None:
        piece = Allocate(tensor=tensor, place=Place(tensor=made))
        self._add_op(EMPTY, phase, reads=(), writes=(made,), moved_nbytes=0, flops=0, piece=piece)

    def _copy(self, tensor: TensorId, source: Place, target: Place, phase: Phase, *, makes: bool) -> None:
        assert source.range is not None
        nbytes = _share(self._graph.tensors[tensor].nbytes, source.range)
        self._add_op(
            CLONE if makes else COPY,
            phase,
            reads=(source.tensor,) if makes else (source.tensor, target.tensor),
            writes=(target.tensor,),
            moved_nbytes=2 * nbytes,
            flops=0,
            piece=Copy(tensor=tensor, source=source, target=target, makes=makes),
        )

    def _execute(
        self,
        op: Op,
        splitting: Splitting | None,
        part: int,
        places: Mapping[TensorId, Place | None],
        *,
        share: tuple[int, int] | None,
    ) -> None:
        def named(tensors: tuple[TensorId, ...]) -> tuple[TensorId, ...]:
            found = [places[tensor] for tensor in tensors]
            return tuple(place.tensor for place in found if place is not None)

        moved, flops = op.moved_nbytes, op.flops
        if splitting is not None and share is not None:
            taken, extent = share
            whole_nbytes = sum(
                self._graph.tensors[tensor].nbytes for tensor in places if tensor not in dict(splitting.cuts)
            )
            whole_nbytes = min(moved, whole_nbytes)
            moved = whole_nbytes + (moved - whole_nbytes) * taken // extent
            flops = flops * taken // extent
        self._add_op(
            op.target,
            op.phase,
            reads=named(op.reads),
            writes=named(op.writes),
            moved_nbytes=moved,
            flops=flops,
            workspace_nbytes=op.workspace_nbytes,
            recomputable=op.recomputable,
            piece=Execute(
                op=op.id,
                axis=None if splitting is None else splitting.axis,
                part=part,
                places=tuple(sorted(places.items())),
            ),
        )

    def _add_op(
        self,
        target: str,
        phase: Phase,
        *,
        reads: tuple[TensorId, ...],
        writes: tuple[TensorId, ...],
        moved_nbytes: int,
        flops: int,
        piece: Piece,
        workspace_nbytes: int = 0,
        recomputable: bool = True,
    ) -> None:
        # A window that is written is a piece of what is there.
        windows = set()
        if isinstance(piece, Execute):
            windows = {
                place.tensor
                for _, place in piece.places
                if place is not None
                and place.range is not None
                and not place.compact
                and place.tensor in writes
            }
        self._made.update(writes)
        self._pieces.append(piece)
        self._ops.append(
            Op(
                id=OpId(len(self._ops)),
                target=target,
                phase=phase,
                reads=tuple(sorted({*reads, *windows})),
                writes=tuple(sorted(set(writes))),
                workspace_nbytes=workspace_nbytes,
                flops=flops,
                moved_nbytes=moved_nbytes,
                recomputable=recomputable,
            )
        )

    def _add_tensor(self, like: Tensor, name: str | None = None) -> TensorId:
        tensor = TensorId(len(self._tensors))
        self._tensors.append(
            Tensor(
                id=tensor,
                nbytes=like.nbytes,
                dtype=like.dtype,
                shape=like.shape,
                role=like.role,
                persistent=like.persistent,
                name=name or like.name,
            )
        )
        return tensor

    def _add_part(self, like: Tensor, own: Range, *, again: bool = False) -> TensorId:
        tensor = TensorId(len(self._tensors))
        self._tensors.append(
            Tensor(
                id=tensor,
                nbytes=_share(like.nbytes, own),
                dtype=like.dtype,
                shape=(own.cut.outer, own.end - own.begin, own.cut.inner),
                role=Role.ACTIVATION if like.persistent else like.role,
                persistent=False,
                name=f"{like.name}{'/copy' if again else ''}[{own.begin}:{own.end}]",
            )
        )
        return tensor

    def _name(self, tensor: TensorId) -> str:
        return self._graph.tensors[tensor].name


def _parted(
    graph: StepGraph, splits: Sequence[Split], number: Mapping[OpId, int]
) -> dict[TensorId, tuple[int, Cut]]:
    """Return the tensors that become micro-tensors: one split alone writes them, in parts, and reads some."""
    writers: dict[TensorId, set[tuple[int, Cut] | None]] = defaultdict(set)
    readers: dict[TensorId, set[tuple[int, Cut]]] = defaultdict(set)
    for op in graph.ops:
        split = number.get(op.id)
        splitting = None if split is None else find_splitting(op, splits[split].axis)
        cuts = {} if splitting is None else dict(splitting.cuts)
        for tensor in {*op.reads, *op.writes}:
            own = (split, cuts[tensor]) if split is not None and tensor in cuts else None
            if tensor in op.writes:
                writers[tensor].add(own)
            elif own is not None:
                readers[tensor].add(own)
    parted: dict[TensorId, tuple[int, Cut]] = {}
    for tensor, found in writers.items():
        if len(found) == 1 and not graph.tensors[tensor].persistent:
            (own,) = found
            if own is not None and own in readers[tensor]:
                parted[tensor] = own
    return parted


def _share(nbytes: int, own: Range) -> int:
    return nbytes * (own.end - own.begin) // own.cut.extent
