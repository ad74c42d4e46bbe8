"""Tensors that are kept in fewer bytes once no op takes them whole: a graph made from a graph.

What a rectifier makes is often needed twice going forward and back: by the layer behind it, which takes its
values, and by its own gradient, which only takes which of them are above zero.  Where the layer behind needs
it no more going backward (a pooling layer takes its shape alone), a bit is all that has to be kept of each
element.  So it is with what dropout draws, also going forward; and which element of its window a pooling
layer chose fits into two bytes instead of eight.  Codes are made behind the last op of the forward pass that
takes the tensor as it is, and the ops behind that are run with them.  Every bit of the results stays.

The result is an ordinary graph: split, planned, proven, simulated and executed like any other.

Source: Jain et al., Gist: Efficient Data Encoding for Deep Neural Network Training (ISCA 2018), section 3,
"Binarize".
Differs: Gist encodes wherever it can; here a plan does where memory is short.  Gist also has codes for sparse
values and for values of fewer bits, the latter of which change results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tensile_db.graph import (
    Axis,
    Code,
    Cut,
    Op,
    OpId,
    Phase,
    Role,
    Splitting,
    StepGraph,
    Tensor,
    TensorId,
)
from tensile_db.scheduler.analysis.once import once_for_each

#: What makes a code, and what runs an op with codes.
PACK: Mapping[Code, str] = {
    Code.SIGNS: "tensile.pack_signs.default",
    Code.UINT16: "tensile.pack_uint16.default",
}
RUN_WITH_CODES: Mapping[str, str] = {
    "aten.threshold_backward.default": "tensile.threshold_backward_of_signs.default",
    "aten.mul.Tensor": "tensile.mul_of_signs.default",
    "aten.native_dropout_backward.default": "tensile.native_dropout_backward_of_signs.default",
    "aten.max_pool2d_with_indices_backward.default": "tensile.max_pool2d_backward_of_codes.default",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How a tensor can be packed."""

    code: Code
    #: Behind which the code is made.
    after: OpId


@dataclass(frozen=True, kw_only=True)
class PackedGraph:
    """A graph with tensors packed.  Tensors keep their ids; the codes come behind them."""

    graph: StepGraph
    #: By op id: the op of the graph that it was made from, None where it makes a code.
    ops: tuple[OpId | None, ...]
    #: Tensor -> its code.
    codes: Mapping[TensorId, TensorId]
    #: The ops that make codes, or move other bytes than what they were made from.
    changed: tuple[OpId, ...]


@once_for_each
def packable(graph: StepGraph) -> Mapping[TensorId, Packing]:
    """Return the tensors that can be packed, ascending.

    They are those of which all ops behind the last one going forward that takes them whole take the same
    code, or the shape alone, and one of these goes backward.
    """
    after: dict[TensorId, OpId] = {}
    takers: dict[TensorId, list[Op]] = {}
    for op in graph.ops:
        for tensor in {*op.reads, *op.writes}:
            if op.phase is Phase.FORWARD and _code_for(tensor, op) is None:
                after[tensor] = op.id
                takers[tensor] = []
            elif tensor in takers:
                takers[tensor].append(op)
    found: dict[TensorId, Packing] = {}
    for tensor, ops in sorted(takers.items()):
        whole = graph.tensors[tensor]
        codes = {_code_for(tensor, op) for op in ops if tensor not in op.shapes}
        goes_back = any(op.phase is not Phase.FORWARD for op in ops)
        if len(codes) != 1 or not goes_back or whole.persistent or whole.role is not Role.ACTIVATION:
            continue
        (code,) = codes
        if code is not None:
            found[tensor] = Packing(code=code, after=after[tensor])
    return found


def _code_for(tensor: TensorId, op: Op) -> Code | None:
    return None if tensor in op.writes else dict(op.codes).get(tensor)


@once_for_each
def known_packed_graph(graph: StepGraph, packed: tuple[TensorId, ...]) -> PackedGraph:
    """Return the graph with these tensors packed, one object for each graph and choice of tensors."""
    return _Packer(graph, packed).run()


class _Packer:
    def __init__(self, graph: StepGraph, packed: Sequence[TensorId]) -> None:
        self._graph = graph
        self._tensors = list(graph.tensors)
        self._ops: list[Op] = []
        self._from: list[OpId | None] = []
        self._packed_after: dict[OpId, list[TensorId]] = {}
        self._how = packable(graph)
        self._rows = {tensor: rows_of(graph, tensor) for tensor in packed}
        for tensor in packed:
            self._packed_after.setdefault(self._how[tensor].after, []).append(tensor)
        #: Of what is packed by now.
        self._codes: dict[TensorId, TensorId] = {}

    def run(self) -> PackedGraph:
        for op in self._graph.ops:
            self._add(self._with_codes(op), op.id)
            for tensor in self._packed_after.get(op.id, ()):
                self._pack(self._graph.tensors[tensor], self._how[tensor].code, op.phase)
        whole = self._graph.ops
        changed = (
            op.id
            for op, made_from in zip(self._ops, self._from, strict=True)
            if made_from is None or op.moved_nbytes != whole[made_from].moved_nbytes
        )
        return PackedGraph(
            graph=StepGraph(tensors=tuple(self._tensors), ops=tuple(self._ops)),
            ops=tuple(self._from),
            codes=dict(self._codes),
            changed=tuple(changed),
        )

    def _add(self, op: Op, made_from: OpId | None) -> None:
        self._ops.append(replace(op, id=OpId(len(self._ops))))
        self._from.append(made_from)

    def _pack(self, whole: Tensor, code: Code, phase: Phase) -> None:
        made = TensorId(len(self._tensors))
        rows = self._rows[whole.id]
        shape = (*rows[:-1], code_elements(rows[-1], code))
        nbytes = prod(shape) * max(8, code.bits) // 8
        self._tensors.append(
            Tensor(
                id=made,
                nbytes=nbytes,
                dtype="uint8" if code is Code.SIGNS else str(code),
                shape=shape,
                role=Role.ACTIVATION,
                persistent=False,
                name=f"{whole.name}/{code}",
            )
        )
        self._codes[whole.id] = made
        pack = Op(
            id=OpId(0),
            target=PACK[code],
            phase=phase,
            reads=(whole.id,),
            writes=(made,),
            workspace_nbytes=0,
            flops=0,
            moved_nbytes=whole.nbytes + nbytes,
            recomputable=True,
            splittings=tuple(
                Splitting(axis=axis, extent=cut.extent, unit=1, cuts=((whole.id, cut), (made, of_code)))
                for axis, cut in cuts_of(self._graph, whole.id).items()
                if (of_code := self._cut_of_code(whole, cut)) is not None
            ),
        )
        self._add(pack, None)

    def _with_codes(self, op: Op) -> Op:
        """Return an op that takes codes of what is packed, and nothing of which it takes the shape alone."""
        coded = [tensor for tensor, _ in op.codes if tensor in self._codes]
        if not coded and not any(tensor in self._codes for tensor in op.shapes):
            return op
        reads = {tensor for tensor in op.reads if tensor not in (*coded, *op.shapes)}
        tensors = self._tensors
        less_nbytes = sum(tensors[each].nbytes - tensors[self._codes[each]].nbytes for each in coded)
        return replace(
            op,
            target=RUN_WITH_CODES[op.target],
            reads=tuple(sorted(reads | {self._codes[tensor] for tensor in coded})),
            # A kernel moves nothing of what it takes the shape of, but is said to, packed or not.
            moved_nbytes=op.moved_nbytes - less_nbytes,
            splittings=tuple(filter(None, (self._splitting(each, op, coded) for each in op.splittings))),
            codes=tuple(each for each in op.codes if each[0] not in coded),
            shapes=(),
        )

    def _splitting(self, splitting: Splitting, op: Op, coded: Sequence[TensorId]) -> Splitting | None:
        """Return the same way to split an op with codes; None where a code cannot be cut like its tensor."""
        cuts = {tensor: cut for tensor, cut in splitting.cuts if tensor not in op.shapes}
        for tensor in coded:
            cut = cuts.pop(tensor, None)
            of_code = None if cut is None else self._cut_of_code(self._graph.tensors[tensor], cut)
            if of_code is None:
                return None
            cuts[self._codes[tensor]] = of_code
        touched = {*op.reads, *op.writes} - {*coded, *op.shapes}
        if not touched <= set(cuts):
            return None
        return replace(splitting, cuts=tuple(sorted(cuts.items())))

    def _cut_of_code(self, whole: Tensor, cut: Cut) -> Cut | None:
        """Return how a code is cut like its tensor; None where parts are not whole rows of it."""
        rows = self._rows[whole.id]
        if len(rows) == 1 or cut.inner % rows[-1]:
            return None
        inner = cut.inner // rows[-1] * code_elements(rows[-1], self._how[whole.id].code)
        return Cut(outer=cut.outer, extent=cut.extent, inner=inner)


@once_for_each
def rows_of(graph: StepGraph, tensor: TensorId) -> tuple[int, ...]:
    """Return a tensor's shape in rows so short that its code can be cut like it, along batch and channels.

    The last size is a row's; each row is whole bytes of the code.

    Where a channel has few elements, as where channels lie side by side, rows are those of the batch, and
    where ops are not split, there is one.
    """
    cuts = cuts_of(graph, tensor)
    whole = graph.tensors[tensor]
    elements = whole.nbytes // ELEMENT_NBYTES[whole.dtype]
    channel, batch = cuts.get(Axis.CHANNEL), cuts.get(Axis.BATCH)
    if channel is not None and channel.inner >= _LEAST_ROW:
        return channel.outer, channel.extent, channel.inner
    if batch is not None and batch.outer == 1 and batch.inner >= _LEAST_ROW:
        return batch.extent, batch.inner
    return (elements,)


def cuts_of(graph: StepGraph, tensor: TensorId) -> Mapping[Axis, Cut]:
    """Return how a tensor is cut where ops that touch it are split, by the first op of each axis."""
    return _cuts(graph).get(tensor, {})


@once_for_each
def _cuts(graph: StepGraph) -> Mapping[TensorId, Mapping[Axis, Cut]]:
    found: dict[TensorId, dict[Axis, Cut]] = {tensor: {} for tensor in packable(graph)}
    for op in graph.ops:
        for splitting in op.splittings:
            for tensor, cut in splitting.cuts:
                if tensor in found:
                    found[tensor].setdefault(splitting.axis, cut)
    return found


def code_elements(elements: int, code: Code) -> int:
    """Return the elements of the code of a row: of signs, eight of the tensor's are one."""
    return -(-elements * code.bits // max(8, code.bits))


#: Elements of a row, at least: of fewer, what fills up its last byte would count.
_LEAST_ROW = 64
#: Bytes of an element, of the dtypes that can be packed.
ELEMENT_NBYTES: Mapping[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "bool": 1, "int64": 8}
