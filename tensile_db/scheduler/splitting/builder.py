"""Tensors and ops added to a split graph one by one."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tensile_db.graph import Op, OpId, Phase, Role, Splitting, StepGraph, Tensor, TensorId
from tensile_db.scheduler.splitting.pieces import Accumulate, Allocate, Copy, Execute, Piece, Place, Range

EMPTY, CLONE, COPY, ADD = (
    "aten.empty_strided.default",
    "aten.clone.default",
    "aten.copy_.default",
    "aten.add_.Tensor",
)


class SplitGraphBuilder:
    """A split graph that is being made of a whole one."""

    def __init__(self, graph: StepGraph, tensors: Sequence[Tensor] = ()) -> None:
        """tensors: those that are there already."""
        self._graph = graph
        self.tensors: list[Tensor] = list(tensors)
        self.ops: list[Op] = []
        #: What each of the ops does, told by the whole graph.
        self.pieces: list[Piece] = []
        #: How many ops alike each of the ops stands for, and the next ones that are added will.
        self.counts: list[int] = []
        self.count = 1
        #: Tensors that have storage.
        self.made: set[TensorId] = set()

    def add_tensor(self, like: Tensor, name: str | None = None) -> TensorId:
        """Add a tensor that is whole."""
        tensor = TensorId(len(self.tensors))
        self.tensors.append(
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

    def add_part(self, like: Tensor, own: Range, *, again: bool = False) -> TensorId:
        """Add a micro-tensor; again: beside the tensor that it is a part of."""
        tensor = TensorId(len(self.tensors))
        self.tensors.append(
            Tensor(
                id=tensor,
                nbytes=_share(like.nbytes, (own,)),
                dtype=like.dtype,
                shape=(own.cut.outer, own.end - own.begin, own.cut.inner),
                role=Role.ACTIVATION if like.persistent else like.role,
                persistent=False,
                name=f"{like.name}{'/copy' if again else ''}[{own.begin}:{own.end}]",
            )
        )
        return tensor

    def add_block(self, like: Tensor, ranges: tuple[Range, ...]) -> Place:
        """Add a block; the outer range first."""
        tensor = TensorId(len(self.tensors))
        where = ",".join(f"{own.begin}:{own.end}" for own in ranges)
        nbytes = _share(like.nbytes, ranges)
        made = replace(like, id=tensor, nbytes=nbytes, shape=(nbytes,), name=f"{like.name}[{where}]")
        self.tensors.append(made)
        within = ranges[1] if len(ranges) > 1 else None
        return Place(tensor=tensor, range=ranges[0], within=within, compact=True)

    def allocate(self, tensor: TensorId, made: TensorId, phase: Phase) -> None:
        """Make storage for a tensor whose parts are copied in later."""
        piece = Allocate(tensor=tensor, place=Place(tensor=made))
        self._add_op(EMPTY, phase, reads=(), writes=(made,), moved_nbytes=0, flops=0, piece=piece)

    def copy(
        self,
        tensor: TensorId,
        source: Place,
        target: Place,
        phase: Phase,
        *,
        makes: bool,
        ranges: tuple[Range, ...] = (),
    ) -> None:
        """Copy ranges of a tensor, default that of the source; makes: the target is made by it."""
        if not ranges:
            assert source.range is not None
            ranges = (source.range,)
        nbytes = _share(self._graph.tensors[tensor].nbytes, ranges)
        self._add_op(
            CLONE if makes else COPY,
            phase,
            reads=(source.tensor,) if makes else (source.tensor, target.tensor),
            writes=(target.tensor,),
            moved_nbytes=2 * nbytes,
            flops=0,
            piece=Copy(tensor=tensor, source=source, target=target, ranges=ranges, makes=makes),
        )

    def execute(
        self,
        op: Op,
        splitting: Splitting | None,
        part: int,
        places: Mapping[TensorId, Place | None],
        *,
        share: tuple[int, int] | None,
    ) -> None:
        """Run an op of the whole graph, or a part of it that takes share[0] of share[1] units."""

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
            unread=named(op.unread),
            piece=Execute(
                op=op.id,
                axis=None if splitting is None else splitting.axis,
                part=part,
                places=tuple(sorted(places.items())),
            ),
        )

    def accumulate(self, tensor: TensorId, summand: Place, total: Place, phase: Phase) -> None:
        """Add a part's summand to what the parts before have made."""
        self._add_op(
            ADD,
            phase,
            reads=(summand.tensor, total.tensor),
            writes=(total.tensor,),
            moved_nbytes=3 * self._graph.tensors[tensor].nbytes,
            flops=0,
            piece=Accumulate(tensor=tensor, summand=summand, total=total),
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
        unread: tuple[TensorId, ...] = (),
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
        self.made.update(writes)
        self.pieces.append(piece)
        self.counts.append(self.count)
        self.ops.append(
            Op(
                id=OpId(len(self.ops)),
                target=target,
                phase=phase,
                reads=tuple(sorted({*reads, *windows})),
                writes=tuple(sorted(set(writes))),
                workspace_nbytes=workspace_nbytes,
                flops=flops,
                moved_nbytes=moved_nbytes,
                recomputable=recomputable,
                unread=tuple(sorted(set(unread))),
            )
        )


def _share(nbytes: int, ranges: Sequence[Range]) -> int:
    taken = prod(own.end - own.begin for own in ranges)
    return nbytes * taken // prod(own.cut.extent for own in ranges)
