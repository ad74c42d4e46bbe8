"""Ops split into micro-ops and tensors into micro-tensors: a graph made from a graph.

A split names ops, an axis and a number of parts.  Its ops that follow each other are run part by part, all of
them on the first part, then all on the second, so that what they hand on is never there as a whole.  A tensor
that such ops alone write becomes micro-tensors for all its life.  Whoever else needs it whole gets it merged;
what they share as a whole is read, and updated, through windows where these lie in one piece, else copied.
What several splits share may be kept in blocks instead (`storages.py`): a part is put together from them, and
taken apart into them.
The result is an ordinary graph: planned, proven, simulated and executed like any other.

Source: TSPLIT sections III-A and V-A (sTensor, merge and split, in-place split).
Differs: the paper splits op by op; here consecutive ops go part by part.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set

from tensile_db.graph import Cut, Op, OpId, Phase, Splitting, StepGraph, TensorId
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.plan import Split
from tensile_db.scheduler.splitting.builder import SplitGraphBuilder
from tensile_db.scheduler.splitting.pieces import Place, Range, SplitGraph, SplitOps
from tensile_db.scheduler.splitting.runs import Run, runs_of
from tensile_db.scheduler.splitting.storages import Grid, blocked_tensors, parted_tensors
from tensile_db.scheduler.splitting.ways import find_splitting, part_ranges


def split_graph(graph: StepGraph, splits: Sequence[Split]) -> SplitGraph:
    """Return the graph with the splits carried out; no op is in two of them."""
    rewriting = _Rewriting(graph, splits, SplitGraphBuilder(graph))
    rewriting.run()
    return rewriting.made()


@once_for_each
def known_split_graph(graph: StepGraph, splits: tuple[Split, ...]) -> SplitGraph:
    """Return the same, one object for each graph and splits: what is known of its graph stays known."""
    return split_graph(graph, splits)


def changed_ops(graph: StepGraph, splits: Sequence[Split], also: Set[OpId]) -> SplitOps:
    """Return the split graph without ops that stay as they are; also: of those, ops that are wanted, too.

    Of parts alike there is one, and how many they are.
    For judging splits: most ops of a graph have nothing to do with any, and parts are many.
    """
    # Whole tensors are those that are there.
    new = SplitGraphBuilder(graph, graph.tensors)
    _Rewriting(graph, splits, new, also).run()
    return SplitOps(
        tensors=tuple(new.tensors), ops=tuple(new.ops), pieces=tuple(new.pieces), counts=tuple(new.counts)
    )


class _Rewriting:
    def __init__(
        self,
        graph: StepGraph,
        splits: Sequence[Split],
        new: SplitGraphBuilder,
        only: Set[OpId] | None = None,
    ) -> None:
        """only: of the ops that stay as they are, those to be added; None: all, with their tensors."""
        self._graph = graph
        self._splits = splits
        self._new = new
        self._only = only
        self._ranges = [part_ranges(graph, split) for split in splits]
        self._number = {op: number for number, split in enumerate(splits) for op in split.ops}
        assert len(self._number) == sum(len(split.ops) for split in splits), "an op is split once"
        self._grids: Mapping[TensorId, Grid] = blocked_tensors(graph, splits, self._number, self._ranges)
        self._blocks: dict[TensorId, dict[tuple[Range, ...], Place]] = {}
        #: Of tensors that are micro-tensors: the split, and how they are cut.
        self._parted = parted_tensors(graph, splits, self._number)
        self._part: dict[tuple[TensorId, int], TensorId] = {}
        self._whole: dict[TensorId, TensorId] = {}
        for tensor in graph.tensors:
            if tensor.id in self._grids:
                self._parted.pop(tensor.id, None)
                self._blocks[tensor.id] = {
                    ranges: self._new.add_block(tensor, ranges) for ranges in self._grids[tensor.id].blocks()
                }
            elif tensor.id in self._parted:
                number, cut = self._parted[tensor.id]
                for part, (begin, end) in enumerate(self._ranges[number]):
                    self._part[tensor.id, part] = self._new.add_part(
                        tensor, Range(cut=cut, begin=begin, end=end)
                    )
            else:
                self._whole[tensor.id] = tensor.id if only is not None else new.add_tensor(tensor)
        new.made = {self._whole[t.id] for t in graph.tensors if t.persistent}
        #: Micro-tensors merged, as long as they are not written, by the phase they are merged in.
        self._merged: dict[tuple[TensorId, Phase], TensorId] = {}

    def run(self) -> None:
        """Add all ops, in order."""
        for block in runs_of(self._graph, self._splits, self._number):
            if isinstance(block, Run):
                self._split_run(block)
            elif self._is_left_out(self._graph.ops[block]):
                self._new.made.update(self._whole[tensor] for tensor in self._graph.ops[block].writes)
            else:
                self._whole_op(self._graph.ops[block])

    def _is_left_out(self, op: Op) -> bool:
        if self._only is None or op.id in self._only:
            return False
        return all(tensor in self._whole for tensor in (*op.reads, *op.writes))

    def made(self) -> SplitGraph:
        """Return what was added."""
        graph = StepGraph(tensors=tuple(self._new.tensors), ops=tuple(self._new.ops))
        blocks = {tensor: tuple(places.values()) for tensor, places in self._blocks.items()}
        return SplitGraph(graph=graph, pieces=tuple(self._new.pieces), whole=self._whole, blocks=blocks)

    def _whole_op(self, op: Op) -> None:
        places = {t: self._find_whole(t, op.phase) for t in sorted({*op.reads, *op.writes})}
        self._new.execute(op, None, 0, places, share=None)
        self._forget_merged(op.writes)

    def _split_run(self, run: Run) -> None:
        ops = [self._graph.ops[op] for op in run.ops]
        split = self._splits[run.split]
        found = [find_splitting(op, split.axis) for op in ops]
        splittings = [splitting for splitting in found if splitting is not None]
        last_write = {tensor: op.id for op in ops for tensor in op.writes}
        for op, splitting in zip(ops, splittings, strict=True):
            cuts = dict(splitting.cuts)
            for tensor in op.reads:
                # Before the run, for the parts all read it.
                if self._is_merged_for(tensor, run.split, cuts.get(tensor)):
                    self._find_whole(tensor, op.phase)
        for part, begin, end, count in self._parts(run, splittings):
            self._new.count = count
            copies: dict[TensorId, Place] = {}
            for op, splitting in zip(ops, splittings, strict=True):
                self._micro_op(op, splitting, run.split, part, (begin, end), copies)
                for tensor in op.writes:
                    if tensor in copies and last_write[tensor] == op.id:
                        self._store(tensor, copies[tensor], op.phase)
        self._new.count = 1
        # By all parts together, which may not all have been added.
        written = self._blocks.keys() & last_write
        self._new.made.update(place.tensor for t in written for place in self._blocks[t].values())
        self._forget_merged(last_write)

    def _parts(self, run: Run, splittings: Sequence[Splitting]) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, begin and end of parts, and how many alike each stands for: of a whole graph, one."""
        ranges = list(enumerate(self._ranges[run.split]))
        if self._only is None:
            yield from ((part, begin, end, 1) for part, (begin, end) in ranges)
            return
        cuts = dict.fromkeys(
            pair for splitting in splittings for pair in splitting.cuts if pair[0] in self._grids
        )
        edges = {
            tuple(begin for begin, _ in bounds)
            for tensor, cut in cuts
            for own, bounds in zip(self._grids[tensor].cuts, self._grids[tensor].bounds, strict=True)
            if own == cut
        }

        def look(part: int, begin: int, end: int) -> Hashable:
            # Blocks end within a part where other splits have other parts.
            within = (tuple(edge - begin for edge in each if begin < edge < end) for each in edges)
            return part > 0, end - begin, tuple(within)

        looks = [look(part, begin, end) for part, (begin, end) in ranges]
        alike = Counter(looks)
        for (part, (begin, end)), own in zip(ranges, looks, strict=True):
            count = alike.pop(own, 0)
            if count:
                yield part, begin, end, count

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
                summand = self._new.add_tensor(
                    self._graph.tensors[tensor], f"{self._name(tensor)}/summand{part}"
                )
                places[tensor] = Place(tensor=summand)
                summands.append(tensor)
            elif tensor in splitting.once and part:
                places[tensor] = None
            else:
                places[tensor] = self._find_whole(tensor, op.phase)
        self._new.execute(op, splitting, part, places, share=(end - begin, splitting.extent))
        for tensor in summands:
            summand_place, total = places[tensor], Place(tensor=self._whole[tensor])
            assert summand_place is not None
            self._new.accumulate(tensor, summand_place, total, op.phase)

    def _place_of_part(
        self, op: Op, tensor: TensorId, number: int, part: int, own: Range, copies: dict[TensorId, Place]
    ) -> Place:
        """Return where a part of an op finds its part of a tensor; a copy of it where it must lie alone."""
        if self._is_part_of(tensor, number, own.cut):
            return Place(tensor=self._part[tensor, part], range=own, compact=True)
        if tensor in copies:
            return copies[tensor]
        if (own,) in self._blocks.get(tensor, {}):
            return self._blocks[tensor][own,]
        if tensor not in op.reads or tensor in self._grids:
            made = self._new.add_part(self._graph.tensors[tensor], own, again=tensor in op.reads)
            copies[tensor] = Place(tensor=made, range=own, compact=True)
            if tensor in op.reads:
                self._put_together(tensor, copies[tensor], op.phase)
            return copies[tensor]
        source = Place(tensor=self._find_whole(tensor, op.phase).tensor, range=own)
        if own.cut.outer == 1:
            return source
        target = Place(
            tensor=self._new.add_part(self._graph.tensors[tensor], own, again=True), range=own, compact=True
        )
        copies[tensor] = target
        self._new.copy(tensor, source, target, op.phase, makes=True)
        return target

    def _is_part_of(self, tensor: TensorId, number: int, cut: Cut | None) -> bool:
        return self._parted.get(tensor) == (number, cut)

    def _is_merged_for(self, tensor: TensorId, number: int, cut: Cut | None) -> bool:
        """Whether ops of a split need a tensor whole that is not kept so."""
        if tensor in self._grids:
            return cut is None
        return tensor in self._parted and not self._is_part_of(tensor, number, cut)

    def _find_whole(self, tensor: TensorId, phase: Phase) -> Place:
        """Return where a tensor is whole, having merged it if it is in parts."""
        if tensor in self._whole:
            return Place(tensor=self._whole[tensor])
        if (tensor, phase) not in self._merged:
            merged = self._new.add_tensor(self._graph.tensors[tensor], f"{self._name(tensor)}/merged")
            self._merged[tensor, phase] = merged
            if tensor in self._grids:
                self._put_together(tensor, Place(tensor=merged), phase)
                return Place(tensor=merged)
            number, cut = self._parted[tensor]
            self._new.allocate(tensor, merged, phase)
            for part, (begin, end) in enumerate(self._ranges[number]):
                own = Range(cut=cut, begin=begin, end=end)
                source = Place(tensor=self._part[tensor, part], range=own, compact=True)
                self._new.copy(tensor, source, Place(tensor=merged, range=own), phase, makes=False)
        return Place(tensor=self._merged[tensor, phase])

    def _forget_merged(self, written: Sequence[TensorId] | Mapping[TensorId, OpId]) -> None:
        for key in [key for key in self._merged if key[0] in written]:
            del self._merged[key]

    def _put_together(self, tensor: TensorId, target: Place, phase: Phase) -> None:
        """Make a part of a tensor, or all of it, from its blocks."""
        self._new.allocate(tensor, target.tensor, phase)
        for ranges in self._grids[tensor].blocks(target.range):
            self._new.copy(tensor, self._blocks[tensor][ranges], target, phase, makes=False, ranges=ranges)

    def _store(self, tensor: TensorId, part: Place, phase: Phase) -> None:
        if tensor in self._grids:
            for ranges in self._grids[tensor].blocks(part.range):
                block = self._blocks[tensor][ranges]
                makes = block.tensor not in self._new.made
                self._new.copy(tensor, part, block, phase, makes=makes, ranges=ranges)
            return
        whole = self._whole[tensor]
        if whole not in self._new.made:
            self._new.allocate(tensor, whole, phase)
        self._new.copy(tensor, part, Place(tensor=whole, range=part.range), phase, makes=False)

    def _name(self, tensor: TensorId) -> str:
        return self._graph.tensors[tensor].name
