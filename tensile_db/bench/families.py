"""One network's graph for every batch size, from captures at two of them.

Every size in a training step is an affine function of the batch: parameters do not change, feature maps grow
with it.  So a search over batch sizes need not capture at each of them.  That two captures are of one form,
and that a third one lies where they say, is checked; a workload where it does not is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tensile_db.errors import InvalidRequest
from tensile_db.graph import Op, StepGraph, Tensor

#: Captured to begin with, and to check.
_SMALL, _LARGE, _CHECK = 8, 16, 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Graphs of one network that differ in the batch alone."""

    small: StepGraph
    large: StepGraph

    def at(self, batch: int) -> StepGraph:
        """Return the graph for a batch of this size."""

        def size(small: int, large: int) -> int:
            return small + (large - small) * (batch - _SMALL) // (_LARGE - _SMALL)

        def tensor(small: Tensor, large: Tensor) -> Tensor:
            shape = tuple(size(*pair) for pair in zip(small.shape, large.shape, strict=True))
            return replace(small, nbytes=size(small.nbytes, large.nbytes), shape=shape)

        def op(small: Op, large: Op) -> Op:
            return replace(
                small,
                flops=size(small.flops, large.flops),
                moved_nbytes=size(small.moved_nbytes, large.moved_nbytes),
                workspace_nbytes=size(small.workspace_nbytes, large.workspace_nbytes),
            )

        return StepGraph(
            tensors=tuple(map(tensor, self.small.tensors, self.large.tensors)),
            ops=tuple(map(op, self.small.ops, self.large.ops)),
        )


def family(capture: Callable[[int], StepGraph], name: str) -> Family:
    """Return the family of what `capture` gives for a batch size.

    Raises InvalidRequest where the graph's form, or its sizes, change otherwise with the batch.
    """
    made = Family(small=capture(_SMALL), large=capture(_LARGE))
    if _form(made.small) != _form(made.large) or made.at(_CHECK).digest != capture(_CHECK).digest:
        raise InvalidRequest(
            f"the training step of {name} changes its form with the batch",
            hint="Search its largest batch with another network, or plan single batches.",
        )
    return made


def _form(graph: StepGraph) -> object:
    tensors = [(t.dtype, len(t.shape), t.role, t.name) for t in graph.tensors]
    return tensors, [(op.target, op.phase, op.reads, op.writes, op.recomputable) for op in graph.ops]
