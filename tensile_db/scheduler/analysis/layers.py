"""What the papers call layers, in a graph that knows only ATen ops.

A convolution opens a layer, which goes on until the next one: batch norm, activation and pooling belong to
the convolution before them.  In the backward pass a layer ends with its `convolution_backward`.

Source: vDNN and SuperNeurons, as Capuchin sections 3.1, 5.3 and 6.1 describe them.
Differs: their networks are lists of layers, given by the user; here layers are read off the ops, and what the
executor waits for stands between ops (`choosing/offload.py`).
"""

from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, TensorId
from tensile_db.scheduler.analysis.accesses import AccessTable

#: Names of ATen ops, without "aten." and the overload.
_CONVOLUTIONS = frozenset({"convolution", "_convolution", "cudnn_convolution"})
_CONVOLUTIONS_BACKWARD = frozenset({"convolution_backward"})
_MATRIX_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "matmul", "linear"})
_JOINS = frozenset({"add", "add_"})


def is_convolution(op: Op) -> bool:
    """Whether the op is a convolution of the forward pass."""
    return _name(op) in _CONVOLUTIONS


def is_expensive(op: Op) -> bool:
    """Whether the op is one that the papers never recompute: a convolution, or a product of matrices."""
    name = _name(op)
    return name in _CONVOLUTIONS or name in _MATRIX_PRODUCTS or "attention" in name


def is_join(graph: StepGraph, op: Op) -> bool:
    """Whether the op adds two feature maps, as residual networks do."""
    volatile = [tensor for tensor in op.reads if not graph.tensors[tensor].persistent]
    return _name(op) in _JOINS and len(volatile) > 1


class Layers:
    """The layers of a step, and which tensors pass between them."""

    def __init__(self, table: AccessTable) -> None:
        self.table = table
        ops = [table.graph.ops[op] for op in table.order]
        #: Positions of the convolutions, and of their backward ops.
        self.convolutions = tuple(i for i, op in enumerate(ops) if is_convolution(op))
        self.convolutions_backward = tuple(
            i for i, op in enumerate(ops) if _name(op) in _CONVOLUTIONS_BACKWARD
        )
        #: The position of the backward pass's first op; the number of ops where there is none.
        self.backward_begin = next((i for i, op in enumerate(ops) if op.phase is Phase.BACKWARD), len(ops))
        #: The position of the classifier's first op: the first product of matrices after all convolutions.
        last = self.convolutions[-1] if self.convolutions else -1
        self.classifier_begin = next(
            (i for i, op in enumerate(ops) if last < i < self.backward_begin and is_expensive(op)),
            self.backward_begin,
        )

    def last_forward(self, tensor: TensorId) -> int | None:
        """Return the position of the tensor's last access before the backward pass, or None."""
        return max((p for p in self.table.positions[tensor] if p < self.backward_begin), default=None)

    def first_backward(self, tensor: TensorId) -> int | None:
        """Return the position of the tensor's first access in the backward pass, or None."""
        return next((p for p in self.table.positions[tensor] if p >= self.backward_begin), None)

    def is_forward(self, tensor: TensorId) -> bool:
        """Whether the forward pass makes the tensor."""
        return 0 <= int(self.table.first[tensor]) < self.backward_begin

    def forward_writers(self, tensor: TensorId) -> list[OpId]:
        """Return the ops of the forward pass that write the tensor, in order."""
        return [self.table.order[p] for p in self.table.writes[tensor] if p < self.backward_begin]

    def is_saved(self, tensor: TensorId) -> bool:
        """Whether the forward pass makes the tensor and the backward pass needs it."""
        role = self.table.graph.tensors[tensor].role
        return (
            role in (Role.ACTIVATION, Role.INPUT)
            and self.is_forward(tensor)
            and self.first_backward(tensor) is not None
        )

    def feeds_forward(self, tensor: TensorId) -> bool:
        """Whether an op of the forward pass other than its writers reads the tensor: a feature map.

        What a batch norm or a pooling saves for its backward op alone feeds nothing.
        """
        written = set(self.table.writes[tensor])
        return any(p < self.backward_begin and p not in written for p in self.table.positions[tensor])

    def is_worth_restoring(self, tensor: TensorId) -> bool:
        """Whether a tensor is a feature map, or as large as those that the same op makes.

        Each tensor is restored by itself: for a batch norm's few statistics it would not be run once more.
        """
        graph = self.table.graph
        beside = graph.ops[self.table.order[int(self.table.first[tensor])]].writes
        maps = [graph.tensors[other].nbytes for other in beside if self.feeds_forward(other)]
        return self.feeds_forward(tensor) or graph.tensors[tensor].nbytes >= max(maps, default=0)


def _name(op: Op) -> str:
    parts = op.target.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "aten" else op.target
