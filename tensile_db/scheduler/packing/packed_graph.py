"""Tensors that are kept as one bit an element: a graph made from a graph.

What a rectifier makes is often needed twice going forward and back: by the layer behind it, which takes its
values, and by its own gradient, which only takes which of them are above zero.  Where the layer behind needs
it no more going backward (a pooling layer takes its shape alone), a bit is all that has to be kept of each
element, made behind the last op that takes values; the gradient is then run with the bits.  Every bit of the
results stays.

The result is an ordinary graph: split, planned, proven, simulated and executed like any other.

Source: Jain et al., Gist: Efficient Data Encoding for Deep Neural Network Training (ISCA 2018), section 3,
"Binarize".
Differs: Gist encodes wherever it can; here a plan does where memory is short.  Gist also keeps which of its
window a pooling layer chose, and sparse values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tensile_db.graph import Axis, Cut, Op, OpId, Phase, Role, Splitting, StepGraph, Tensor, TensorId
from tensile_db.scheduler.analysis.once import once_for_each

PACK = "tensile.pack_signs.default"
#: What runs an op with bits in place of a tensor of which it takes signs, or without one of which it takes
#: the shape.
RUN_WITH_BITS: Mapping[str, str] = {
    "aten.threshold_backward.default": "tensile.threshold_backward_of_signs.default",
    "aten.max_pool2d_with_indices_backward.default": "tensile.max_pool2d_backward_of_shape.default",
}


@dataclass(frozen=True, kw_only=True)
class PackedGraph:
    """A graph with tensors packed.  Tensors keep their ids; the bits come behind them."""

    graph: StepGraph
    #: By op id: the op of the graph that it was made from, None where it makes bits.
    ops: tuple[OpId | None, ...]
    #: Tensor -> its bits, eight elements a byte.
    bits: Mapping[TensorId, TensorId]


@once_for_each
def packable(graph: StepGraph) -> Mapping[TensorId, OpId]:
    """Return the tensors that can be packed, ascending, with the last op that takes or makes their values."""
    last: dict[TensorId, OpId] = {}
    later: dict[TensorId, list[Op]] = {}
    for op in graph.ops:
        for tensor in {*op.reads, *op.writes}:
            if tensor in op.writes or tensor not in {*op.signs, *op.shapes}:
                last[tensor] = op.id
                later.pop(tensor, None)
            else:
                later.setdefault(tensor, []).append(op)
    found: dict[TensorId, OpId] = {}
    for tensor, readers in sorted(later.items()):
        whole = graph.tensors[tensor]
        goes_back = graph.ops[last[tensor]].phase is Phase.FORWARD and readers[0].phase is not Phase.FORWARD
        takes_signs = any(tensor in op.signs for op in readers)
        if goes_back and takes_signs and not whole.persistent and whole.role is Role.ACTIVATION:
            found[tensor] = last[tensor]
    return found


@once_for_each
def known_packed_graph(graph: StepGraph, packed: tuple[TensorId, ...]) -> PackedGraph:
    """Return the graph with these tensors packed, one object for each graph and choice of tensors."""
    return _Packing(graph, packed).run()


class _Packing:
    def __init__(self, graph: StepGraph, packed: Sequence[TensorId]) -> None:
        self._graph = graph
        self._tensors = list(graph.tensors)
        self._ops: list[Op] = []
        self._from: list[OpId | None] = []
        self._packed_after: dict[OpId, list[TensorId]] = {}
        for tensor in packed:
            self._packed_after.setdefault(packable(graph)[tensor], []).append(tensor)
        #: Of what is packed by now.
        self._bits: dict[TensorId, TensorId] = {}

    def run(self) -> PackedGraph:
        for op in self._graph.ops:
            self._add(self._with_bits(op), op.id)
            for tensor in self._packed_after.get(op.id, ()):
                self._pack(self._graph.tensors[tensor], op.phase)
        return PackedGraph(
            graph=StepGraph(tensors=tuple(self._tensors), ops=tuple(self._ops)),
            ops=tuple(self._from),
            bits=dict(self._bits),
        )

    def _add(self, op: Op, made_from: OpId | None) -> None:
        self._ops.append(replace(op, id=OpId(len(self._ops))))
        self._from.append(made_from)

    def _pack(self, whole: Tensor, phase: Phase) -> None:
        bits = TensorId(len(self._tensors))
        nbytes = bits_nbytes(whole)
        self._tensors.append(
            Tensor(
                id=bits,
                nbytes=nbytes,
                dtype="uint8",
                shape=(nbytes,),
                role=Role.ACTIVATION,
                persistent=False,
                name=f"{whole.name}/signs",
            )
        )
        self._bits[whole.id] = bits
        pack = Op(
            id=OpId(0),
            target=PACK,
            phase=phase,
            reads=(whole.id,),
            writes=(bits,),
            workspace_nbytes=0,
            flops=0,
            moved_nbytes=whole.nbytes + nbytes,
            recomputable=True,
        )
        self._add(pack, None)

    def _with_bits(self, op: Op) -> Op:
        """Return an op that takes bits of what is packed, and no tensor of which it takes the shape alone."""
        signs = [tensor for tensor in op.signs if tensor in self._bits]
        shapes = [tensor for tensor in op.shapes if tensor in self._bits]
        if not signs and not shapes:
            return op
        reads = {tensor for tensor in op.reads if tensor not in (*signs, *shapes)}
        tensors = self._tensors
        less_nbytes = sum(tensors[each].nbytes - tensors[self._bits[each]].nbytes for each in signs)
        return replace(
            op,
            target=RUN_WITH_BITS[op.target],
            reads=tuple(sorted(reads | {self._bits[tensor] for tensor in signs})),
            # A kernel moves nothing of what it takes the shape of, but is said to, packed or not.
            moved_nbytes=op.moved_nbytes - less_nbytes,
            splittings=tuple(filter(None, (self._splitting(each, signs, shapes) for each in op.splittings))),
            signs=tuple(tensor for tensor in op.signs if tensor not in signs),
            shapes=tuple(tensor for tensor in op.shapes if tensor not in shapes),
        )

    def _splitting(
        self, splitting: Splitting, signs: Sequence[TensorId], shapes: Sequence[TensorId]
    ) -> Splitting | None:
        """Return the same way to split, of an op with bits; None where parts are no whole bytes."""
        if splitting.axis is not Axis.BATCH:
            return None
        cuts = dict(splitting.cuts)
        for tensor in shapes:
            cuts.pop(tensor, None)
        for tensor in signs:
            cut = cuts.pop(tensor, None)
            if cut is None or cut.outer != 1 or cut.inner % 8:
                return None
            cuts[self._bits[tensor]] = Cut(outer=1, extent=cut.extent, inner=cut.inner // 8)
        return replace(splitting, cuts=tuple(sorted(cuts.items())))


def bits_nbytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's bits: of its storage's elements, eight a byte."""
    elements = tensor.nbytes // ELEMENT_NBYTES[tensor.dtype]
    return -(-elements // 8)


#: Bytes of an element, of the dtypes that can be packed.
ELEMENT_NBYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}
