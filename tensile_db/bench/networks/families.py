"""One network's graph for every batch size, from captures at two of them.

Every size in a training step is an affine function of the batch: parameters do not change, feature maps grow
with it.  So a search over batch sizes need not capture at each of them.  That two captures are of one form,
and that a third one lies where they say, is checked; a workload where it does not is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from tensile_db.errors import InvalidRequest
from tensile_db.graph import Axis, Cut, Op, Splitting, StepGraph, Tensor, TensorId

#: Captured to begin with, and to check.
_SMALL, _LARGE, _CHECK = 8, 16, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Graphs of one network that differ in the batch alone."""

    small: StepGraph
    large: StepGraph
    #: A third one, for how ops can be split: of few rows, some cannot.
    check: StepGraph

    def at(self, batch: int) -> StepGraph:
        """Return the graph for a batch of this size."""

        def size(small: int, large: int) -> int:
            return small + (large - small) * (batch - _SMALL) // (_LARGE - _SMALL)

        def tensor(small: Tensor, large: Tensor) -> Tensor:
            shape = tuple(size(*pair) for pair in zip(small.shape, large.shape, strict=True))
            return replace(small, nbytes=size(small.nbytes, large.nbytes), shape=shape)

        tensors = tuple(map(tensor, self.small.tensors, self.large.tensors))

        def op(small: Op, large: Op, check: Op) -> Op:
            return replace(
                small,
                flops=size(small.flops, large.flops),
                moved_nbytes=size(small.moved_nbytes, large.moved_nbytes),
                workspace_nbytes=size(small.workspace_nbytes, large.workspace_nbytes),
                splittings=tuple(self._splitting(found, tensors, batch) for found in check.splittings),
            )

        ops = tuple(map(op, self.small.ops, self.large.ops, self.check.ops))
        return StepGraph(tensors=tensors, ops=ops)

    def _splitting(self, found: Splitting, tensors: Sequence[Tensor], batch: int) -> Splitting:
        """Return the splitting of an op for another batch than that of `check`."""
        rows = Fraction(batch, _CHECK) if found.axis is Axis.BATCH else Fraction(1)

        def cut(tensor: TensorId, checked: Cut) -> Cut:
            if found.axis is Axis.BATCH:
                return replace(checked, extent=int(checked.extent * rows))
            # The batch lies around the channels, or within them.
            grown = Fraction(tensors[tensor].nbytes, self.check.tensors[tensor].nbytes)
            if (checked.outer * grown).denominator == 1:
                return replace(checked, outer=int(checked.outer * grown))
            return replace(checked, inner=int(checked.inner * grown))

        return replace(
            found,
            extent=int(found.extent * rows),
            cuts=tuple((tensor, cut(tensor, checked)) for tensor, checked in found.cuts),
        )


def family(capture: Callable[[int], StepGraph], name: str) -> Family:
    """Return the family of what `capture` gives for a batch size.

    Raises InvalidRequest where the graph's form, or its sizes, change otherwise with the batch.
    """
    made = Family(small=capture(_SMALL), large=capture(_LARGE), check=capture(_CHECK))
    if _form(made.small) != _form(made.large) or made.at(_CHECK).digest != made.check.digest:
        raise InvalidRequest(
            f"the training step of {name} changes its form with the batch",
            hint="Search its largest batch with another network, or plan single batches.",
        )
    return made


def _form(graph: StepGraph) -> object:
    tensors = [(t.dtype, len(t.shape), t.role, t.name) for t in graph.tensors]
    return tensors, [(op.target, op.phase, op.reads, op.writes, op.recomputable) for op in graph.ops]
