"""How tensors are kept once ops are split: whole, as the micro-tensors of one split, or in blocks.

One split's ops use the parts that they make themselves.  A tensor that several splits use, along different
axes maybe (a batch norm makes channels, a convolution reads rows), is kept whole; or in blocks, each of which
lies in one part of every such split, so that it is never there whole.  A part is then put together from
blocks, and taken apart into blocks, by copies.

Source: TSPLIT sections III-A and V-A (micro-tensors).
Differs: the paper merges a tensor for all ops that are not split alike; blocks are ours.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

from tensile_db.graph import Cut, OpId, StepGraph, TensorId
from tensile_db.scheduler.plan import Split
from tensile_db.scheduler.splitting.pieces import Range
from tensile_db.scheduler.splitting.ways import find_splitting

#: The half-open range of each part of a split.
Bounds = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The blocks of a tensor: its ranges along one cut, or along two of which one lies within the other."""

    #: The outer cut first.
    cuts: tuple[Cut, ...]
    #: Along each cut, ascending, without gaps.
    bounds: tuple[Bounds, ...]

    def blocks(self, within: Range | None = None) -> Iterator[tuple[Range, ...]]:
        """Yield the ranges of each block; within: only the blocks in that range."""
        ranges = [
            [
                Range(cut=cut, begin=begin, end=end)
                for begin, end in bounds
                if within is None or within.cut != cut or (within.begin <= begin and end <= within.end)
            ]
            for cut, bounds in zip(self.cuts, self.bounds, strict=True)
        ]
        yield from product(*ranges)


def parted_tensors(
    graph: StepGraph, splits: Sequence[Split], number: Mapping[OpId, int]
) -> dict[TensorId, tuple[int, Cut]]:
    """Return the tensors that become micro-tensors: one split alone writes them, in parts, and reads some."""
    writers: dict[TensorId, set[tuple[int, Cut] | None]] = defaultdict(set)
    readers: dict[TensorId, set[tuple[int, Cut]]] = defaultdict(set)
    cuts_of = {op: _cuts_of(graph, splits, number, op) for op in number}
    cut_somewhere = {tensor for cuts in cuts_of.values() for tensor in cuts}
    for op in graph.ops:
        cuts = cuts_of.get(op.id, {})
        for tensor in op.writes:
            if tensor in cut_somewhere:
                writers[tensor].add((number[op.id], cuts[tensor]) if tensor in cuts else None)
        for tensor in cuts:
            if tensor not in op.writes:
                readers[tensor].add((number[op.id], cuts[tensor]))
    parted: dict[TensorId, tuple[int, Cut]] = {}
    for tensor, found in writers.items():
        if len(found) == 1 and not graph.tensors[tensor].persistent:
            (own,) = found
            if own is not None and own in readers[tensor]:
                parted[tensor] = own
    return parted


def blocked_tensors(
    graph: StepGraph, splits: Sequence[Split], number: Mapping[OpId, int], bounds: Sequence[Bounds]
) -> dict[TensorId, Grid]:
    """Return the tensors that are kept in blocks: several splits use them, one of which asks for blocks.

    bounds: the parts' ranges, by split.
    """
    if not any(split.blocks for split in splits):
        return {}
    users: dict[TensorId, set[tuple[int, Cut]]] = defaultdict(set)
    #: Written by an op that makes all of it.
    made_whole: set[TensorId] = set()
    for op in graph.ops:
        cuts = _cuts_of(graph, splits, number, op.id) if op.id in number else {}
        made_whole.update(tensor for tensor in op.writes if tensor not in cuts)
        for tensor in cuts:
            users[tensor].add((number[op.id], cuts[tensor]))
    grids: dict[TensorId, Grid] = {}
    for tensor, found in sorted(users.items()):
        asked = any(splits[split].blocks for split, _ in found)
        if not asked or len(found) < 2 or tensor in made_whole or graph.tensors[tensor].persistent:
            continue
        cuts_found = sorted({cut for _, cut in found}, key=lambda cut: (cut.outer, cut.extent, cut.inner))
        if len(cuts_found) == 1 or (len(cuts_found) == 2 and _is_within(*cuts_found)):
            grids[tensor] = Grid(
                cuts=tuple(cuts_found),
                bounds=tuple(
                    _common([bounds[split] for split, own in sorted(found, key=_by_split) if own == cut])
                    for cut in cuts_found
                ),
            )
    return grids


def _cuts_of(
    graph: StepGraph, splits: Sequence[Split], number: Mapping[OpId, int], op: OpId
) -> Mapping[TensorId, Cut]:
    """Return how the tensors of an op are cut by its split; none of an op that stays whole."""
    split = number.get(op)
    splitting = None if split is None else find_splitting(graph.ops[op], splits[split].axis)
    return {} if splitting is None else dict(splitting.cuts)


def _by_split(user: tuple[int, Cut]) -> int:
    return user[0]


def _is_within(outer: Cut, inner: Cut) -> bool:
    """Whether each element along the outer cut holds all of what lies along the inner one."""
    return outer.inner % (inner.extent * inner.inner) == 0


def _common(parts: Sequence[Bounds]) -> Bounds:
    """Return the ranges between all bounds, so that each part is several of them."""
    edges = sorted({edge for bounds in parts for pair in bounds for edge in pair})
    return tuple(pairwise(edges))
