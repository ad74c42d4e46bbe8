"""One training step as a static graph of operators over tensors. No torch.

A tensor here is a storage: views and in-place results share the id of their base.  An op's id is its place in
eager PyTorch's execution order.

Source: TENSILE sections III-A and III-C (job, tensor access, workload).
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import NewType

TensorId = NewType("TensorId", int)
OpId = NewType("OpId", int)


class Role(StrEnum):
    """What a tensor is for."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER_STATE = "optimizer_state"
    INPUT = "input"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    OUTPUT = "output"


class Phase(StrEnum):
    """The part of a training step that an op belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A storage."""

    id: TensorId
    #: Bytes of the whole storage.
    nbytes: int
    dtype: str
    #: Shape of the value that made the storage.
    shape: tuple[int, ...]
    role: Role
    #: Keeps its value from one iteration to the next (parameters, buffers, optimizer state).
    persistent: bool
    #: Qualified name of a persistent tensor, e.g. "parameter/features.0.weight"; else the making op's name.
    name: str


class Code(StrEnum):
    """How a tensor can be kept in fewer bytes."""

    #: A bit for each element: whether it is above zero.
    SIGNS = "signs"
    #: Whole numbers below 65,536, two bytes each.
    UINT16 = "uint16"

    @property
    def bits(self) -> int:
        """Bits that an element takes."""
        return 1 if self is Code.SIGNS else 16


class Axis(StrEnum):
    """Along what an op can be split."""

    #: Rows of the batch.
    BATCH = "batch"
    #: Channels of images, features of rows.
    CHANNEL = "channel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A storage seen as [outer, extent, inner] elements, which is cut along the middle one."""

    outer: int
    extent: int
    inner: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Splitting:
    """A way to run an op part by part with the same result (TSPLIT section IV)."""

    axis: Axis
    #: Elements along what is split.
    extent: int
    #: A part begins at a multiple of this many elements, and is no smaller; else a kernel could take another
    #: way to add up.
    unit: int
    #: Tensors of which a part reads, or makes, its own part alone; ascending by tensor.
    cuts: tuple[tuple[TensorId, Cut], ...]
    #: Tensors of which every part makes a summand: the gradients of weights along the batch.
    sums: tuple[TensorId, ...] = ()
    #: Tensors that the first part makes.
    once: tuple[TensorId, ...] = ()
    #: Whether each part makes what it makes in the order of the whole op, as far as tests on CPUs show; else
    #: kernels may sum up otherwise.
    in_order: bool = True

    @property
    def keeps_bits(self) -> bool:
        """Whether the parts give bit for bit what the whole op gives."""
        return self.in_order and not self.sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """An operator call."""

    id: OpId
    #: ATen overload, e.g. "aten.convolution.default"; "tensile.load_batch" makes the inputs and
    #: "tensile.report" reads the outputs at the end of the iteration.
    target: str
    phase: Phase
    #: Tensors it reads, ascending, without repetition.
    reads: tuple[TensorId, ...]
    #: Tensors it writes, ascending.  A tensor in both is updated in place.
    writes: tuple[TensorId, ...]
    #: Device bytes it needs beyond its tensors while it runs.
    workspace_nbytes: int
    #: Multiply-adds counted twice; 0 where only memory is moved.
    flops: int
    #: Bytes it reads plus bytes it writes, by its arguments' sizes.
    moved_nbytes: int
    #: May run again within the iteration with the same result, also where persistent tensors that it both
    #: reads and writes have changed since (docs/plan_format.md).
    recomputable: bool
    #: How it can be split; at most one way for each axis.
    splittings: tuple[Splitting, ...] = ()
    #: Of what it reads, tensors that must be there, but of which only the shape matters; ascending.  That
    #: follows from what the op is, as its splittings do.
    unread: tuple[TensorId, ...] = ()
    #: Of what it reads, tensors that it can be given in a code instead, and tensors of which it takes the
    #: shape alone; ascending.  Run with codes (`scheduler/packing`) it does without the latter; as it is, all
    #: must be there.  That follows from what the op is, too.
    codes: tuple[tuple[TensorId, Code], ...] = ()
    shapes: tuple[TensorId, ...] = ()

    @property
    def values(self) -> tuple[TensorId, ...]:
        """Tensors whose value it takes: what it reads, without those of which only the shape matters."""
        # Of nearly all ops there are none of these.
        return tuple(t for t in self.reads if t not in self.unread) if self.unread else self.reads

    def draws(self, tensors: Sequence[Tensor]) -> bool:
        """Whether it draws random numbers, as ops that must not run twice though no state keeps them from it.

        tensors: by id.
        """
        of_a_graph = not self.target.startswith("tensile.")
        return of_a_graph and not self.recomputable and not any(tensors[t].persistent for t in self.writes)


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """A whole step: `tensors[i].id == i`, `ops[i].id == i`, ops in eager's order."""

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]

    def __post_init__(self) -> None:
        made = {tensor.id for tensor in self.tensors if tensor.persistent}
        for index, tensor in enumerate(self.tensors):
            assert tensor.id == index, f"tensor {index} is out of place"
        for index, op in enumerate(self.ops):
            assert op.id == index, f"op {index} is out of place"
            missing = [tensor for tensor in op.reads if tensor not in made]
            assert not missing, f"op {index} {op.target} reads {missing} before they are made"
            made.update(op.writes)

    @cached_property
    def state_nbytes(self) -> int:
        """Bytes of all persistent tensors."""
        return sum(tensor.nbytes for tensor in self.tensors if tensor.persistent)

    @cached_property
    def digest(self) -> str:
        """SHA-256 over everything in the graph, in hexadecimal: equal digests have equal plans."""
        text = json.dumps(
            [
                [[t.nbytes, t.dtype, t.shape, t.role, t.persistent, t.name] for t in self.tensors],
                [
                    [
                        o.target,
                        o.phase,
                        o.reads,
                        o.writes,
                        o.workspace_nbytes,
                        o.flops,
                        o.moved_nbytes,
                        o.recomputable,
                        o.unread,
                        o.codes,
                        o.shapes,
                        [_splitting_facts(splitting) for splitting in o.splittings],
                    ]
                    for o in self.ops
                ],
            ],
            separators=(",", ":"),
        )
        return hashlib.sha256(text.encode()).hexdigest()


def _splitting_facts(splitting: Splitting) -> list[object]:
    cuts = [[tensor, cut.outer, cut.extent, cut.inner] for tensor, cut in splitting.cuts]
    facts: list[object] = [splitting.axis, splitting.extent, splitting.unit, cuts]
    return [*facts, splitting.sums, splitting.once, splitting.in_order]
