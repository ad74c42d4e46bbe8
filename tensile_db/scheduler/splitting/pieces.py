"""What the ops of a split graph do, told by the whole graph: what calls are made from.

Source: TSPLIT section V-A, the configuration of an sTensor and the graph that is generated from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tensile_db.graph import Axis, Cut, Op, OpId, StepGraph, Tensor, TensorId


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The elements [begin, end) along a cut."""

    cut: Cut
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a micro-op finds, or leaves, a tensor of the whole graph."""

    #: In the split graph.
    tensor: TensorId
    #: What of the whole tensor it means; None: all of it.
    range: Range | None = None
    #: Of a block, what of that range it is.
    within: Range | None = None
    #: The split graph's tensor is that range and no more; else the range is a window onto it.
    compact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Execute:
    """An op of the whole graph, or a part of one."""

    op: OpId
    #: None: unsplit.
    axis: Axis | None
    part: int
    #: Of each tensor that the op touches; None: what this part makes of it is dropped.
    places: tuple[tuple[TensorId, Place | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocate:
    """Make a tensor whose parts are copied in later."""

    tensor: TensorId
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Copy a range of a tensor, or a block, from one place to another."""

    tensor: TensorId
    source: Place
    target: Place
    #: What is copied, in both places; the outer range first.
    ranges: tuple[Range, ...]
    #: The target is made by it; else it is there.
    makes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulate:
    """Add a part's summand to what the parts before have made."""

    tensor: TensorId
    summand: Place
    total: Place


Piece = Execute | Allocate | Copy | Accumulate


@dataclass(frozen=True, kw_only=True)
class SplitOps:
    """Some ops of a split graph, in order, and all tensors that they touch.

    Of a run's parts that are alike one is here for all, with their number; its first part stands for itself.
    """

    #: Those of the whole graph first, with its ids.
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    #: What each of the ops does, told by the whole graph.
    pieces: tuple[Piece, ...]
    #: How many ops alike each of the ops stands for.
    counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SplitGraph:
    """A split graph, and what each of its ops does, told by the whole one."""

    graph: StepGraph
    #: By op id.
    pieces: tuple[Piece, ...]
    #: Tensors that were not split: their id in the whole graph -> in this one.
    whole: Mapping[TensorId, TensorId]
    #: Of tensors in blocks: the place of each block.
    blocks: Mapping[TensorId, tuple[Place, ...]]

    @property
    def ops(self) -> tuple[Op, ...]:
        """The split graph's."""
        return self.graph.ops
