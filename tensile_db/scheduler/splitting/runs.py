"""Which ops of a split follow each other closely enough to be run part by part."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensile_db.graph import Op, OpId, Splitting, StepGraph, TensorId
from tensile_db.scheduler.plan import Split

#: What runs ahead of a run that it stands in the middle of writes no more than this: counters of batches.
_MOVED_AHEAD_NBYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Ops of one split, in order: all of them on one part, then all on the next."""

    split: int
    ops: tuple[OpId, ...]


def runs_of(graph: StepGraph, splits: Sequence[Split], number: Mapping[OpId, int]) -> Iterator[Run | OpId]:
    """Yield the ops that stay whole and the runs, in an order that keeps all dependences.

    number: the split of each op that is in one.
    """
    building: _Building | None = None
    for op in graph.ops:
        own = number.get(op.id)
        if building is not None:
            if own == building.split and building.can_join(op):
                building.join(op)
                continue
            if own is None and building.can_go_ahead(op):
                building.waiting.append(op)
                continue
            yield from building.close()
            building = None
        if own is None:
            yield op.id
        else:
            building = _Building(own, splits[own])
            building.join(op)
    if building is not None:
        yield from building.close()


class _Building:
    def __init__(self, split: int, how: Split) -> None:
        self.split = split
        self._how = how
        self._ops: list[OpId] = []
        self._ahead: list[OpId] = []
        #: Ops after the run's last one so far that could go ahead of it.
        self.waiting: list[Op] = []
        #: How each tensor was touched: cut, or None for whole.
        self._touched: dict[TensorId, set[object]] = {}
        self._written: set[TensorId] = set()

    def can_join(self, op: Op) -> bool:
        """Whether a part of the op needs of the run's tensors no more than the same part has made."""
        cuts = dict(self._splitting(op).cuts)
        for tensor in op.reads:
            if tensor in self._written and self._touched[tensor] != {cuts.get(tensor, _WHOLE)}:
                return False
            if tensor in self._written and tensor not in cuts:
                return False
        for tensor in op.writes:
            if tensor in self._touched and (tensor not in cuts or self._touched[tensor] != {cuts[tensor]}):
                return False
        return True

    def join(self, op: Op) -> None:
        cuts = dict(self._splitting(op).cuts)
        self._ahead += [other.id for other in self.waiting]
        self.waiting.clear()
        self._ops.append(op.id)
        for tensor in {*op.reads, *op.writes}:
            self._touched.setdefault(tensor, set()).add(cuts.get(tensor, _WHOLE))
        self._written.update(op.writes)

    def can_go_ahead(self, op: Op) -> bool:
        """Whether a small op has nothing to do with the run, nor with those that may not go ahead."""
        nbytes = op.moved_nbytes
        return (
            nbytes <= _MOVED_AHEAD_NBYTES
            and not self._written.intersection(op.reads)
            and not set(self._touched).intersection(op.writes)
        )

    def close(self) -> Iterator[Run | OpId]:
        yield from self._ahead
        yield Run(split=self.split, ops=tuple(self._ops))
        yield from (op.id for op in self.waiting)

    def _splitting(self, op: Op) -> Splitting:
        return next(splitting for splitting in op.splittings if splitting.axis is self._how.axis)


_WHOLE = "whole"
