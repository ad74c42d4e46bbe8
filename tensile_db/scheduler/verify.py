"""Proof, before anything runs, that a program loses nothing and how much it can hold.

Walks the instructions once from the state in which every iteration starts, and checks that every op reads
the values that it reads in eager's order, and that the end leaves that state. Shares no code with planners.

Source: ours; docs/planner.md, "Two peaks".
"""

from collections.abc import Sequence
from enum import Enum, auto

from tensile_db.errors import InvalidPlan
from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Instruction


class _Where(Enum):
    """Where a tensor's last value is."""

    NOWHERE = auto()
    DEVICE = auto()
    #: On the device, copy to the host under way or ended.
    LEAVING = auto()
    HOST = auto()
    #: On the host, copy to the device under way.
    ARRIVING = auto()


#: Where a tensor takes up device memory.
_HELD = (_Where.DEVICE, _Where.LEAVING, _Where.ARRIVING)


def verify(graph: StepGraph, instructions: Sequence[Instruction], start_on_host: Sequence[TensorId]) -> int:
    """Return the guaranteed peak in bytes; raise InvalidPlan naming the first instruction that is wrong."""
    checker = _Checker(graph, start_on_host)
    start = dict(checker.where)
    for index, instruction in enumerate(instructions):
        try:
            checker.step(instruction)
        except InvalidPlan as error:
            raise InvalidPlan(f"instruction {index} ({instruction}): {error.message}") from None
    for tensor in graph.tensors:
        if checker.where[tensor.id] is not start[tensor.id]:
            raise InvalidPlan(
                f"tensor {tensor.id} starts an iteration as {start[tensor.id].name}"
                f" but ends it as {checker.where[tensor.id].name}"
            )
    missing = [op.id for op in graph.ops if op.id not in checker.computed]
    if missing:
        raise InvalidPlan(f"ops {missing[:5]} never run")
    return checker.peak_nbytes


class _Checker:
    def __init__(self, graph: StepGraph, start_on_host: Sequence[TensorId]) -> None:
        self._graph = graph
        on_host = set(start_on_host)
        self.where: dict[TensorId, _Where] = {
            tensor.id: _Where.NOWHERE
            if not tensor.persistent
            else (_Where.HOST if tensor.id in on_host else _Where.DEVICE)
            for tensor in graph.tensors
        }
        #: Ops that have run, once.
        self.computed: set[int] = set()
        #: Per tensor, the op that made the value it has; None: it has it from the iteration's start.
        self._maker: dict[TensorId, OpId | None] = dict.fromkeys(self.where)
        self._makers_read = _makers_read(graph)
        self._held_nbytes = sum(t.nbytes for t in graph.tensors if self.where[t.id] in _HELD)
        self.peak_nbytes = self._held_nbytes

    def step(self, instruction: Instruction) -> None:
        match instruction:
            case Compute():
                self._compute(instruction)
            case CopyOut(tensor=tensor):
                self._expect(tensor, _Where.DEVICE)
                self.where[tensor] = _Where.LEAVING
            case CopyIn(tensor=tensor):
                self._expect(tensor, _Where.HOST)
                self.where[tensor] = _Where.ARRIVING
                self._hold(self._graph.tensors[tensor].nbytes)
            case Await(tensor=tensor):
                self._await(tensor)
            case Free(tensor=tensor):
                self._expect(tensor, _Where.DEVICE)
                if self._graph.tensors[tensor].persistent:
                    raise InvalidPlan(f"frees the persistent tensor {tensor}")
                self.where[tensor] = _Where.NOWHERE
                self._hold(-self._graph.tensors[tensor].nbytes)

    def _await(self, tensor: TensorId) -> None:
        if self.where[tensor] is _Where.LEAVING:
            self.where[tensor] = _Where.HOST
            self._hold(-self._graph.tensors[tensor].nbytes)
        elif self.where[tensor] is _Where.ARRIVING:
            self.where[tensor] = _Where.DEVICE
        else:
            raise InvalidPlan(f"waits for tensor {tensor}, of which no copy is under way")

    def _compute(self, instruction: Compute) -> None:
        op = self._graph.ops[instruction.op]
        again = op.id in self.computed
        if instruction.recompute and not (again and op.recomputable):
            raise InvalidPlan(f"runs op {op.id} again, which has not run or must not run twice")
        if again and not instruction.recompute:
            raise InvalidPlan(f"runs op {op.id} twice")
        for tensor in op.reads:
            if self.where[tensor] is not _Where.DEVICE:
                raise InvalidPlan(f"op {op.id} reads tensor {tensor}, which is {self.where[tensor].name}")
        made = [t for t in op.writes if not (instruction.recompute and self._graph.tensors[t].persistent)]
        for tensor in made:
            if self.where[tensor] in (_Where.LEAVING, _Where.ARRIVING, _Where.HOST):
                raise InvalidPlan(f"op {op.id} writes tensor {tensor}, which is {self.where[tensor].name}")
        self._check_values(instruction)
        # A second run makes all its results anew, also those whose first value is still there.
        extra_nbytes = op.workspace_nbytes
        for tensor in made:
            nbytes = self._graph.tensors[tensor].nbytes
            if self.where[tensor] is _Where.NOWHERE:
                self.where[tensor] = _Where.DEVICE
                self._hold(nbytes)
            elif instruction.recompute and tensor not in op.reads:
                extra_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self._held_nbytes + extra_nbytes)
        self.computed.add(op.id)
        self._maker.update(dict.fromkeys(made, op.id))

    def _check_values(self, instruction: Compute) -> None:
        """Check that the op reads the values it reads in eager's order."""
        op = self._graph.ops[instruction.op]
        for tensor, maker in zip(op.reads, self._makers_read[op.id], strict=True):
            if self._maker[tensor] == maker:
                continue
            if not instruction.recompute:
                raise InvalidPlan(f"op {op.id} reads tensor {tensor} with a value that is not its last one")
            # What a second run reads only to update it does not bear on its other results.
            if not (self._graph.tensors[tensor].persistent and tensor in op.writes):
                raise InvalidPlan(f"runs op {op.id} again, but tensor {tensor} has changed since")

    def _expect(self, tensor: TensorId, where: _Where) -> None:
        if self.where[tensor] is not where:
            raise InvalidPlan(f"tensor {tensor} is {self.where[tensor].name}, not {where.name}")

    def _hold(self, nbytes: int) -> None:
        self._held_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self._held_nbytes)


def _makers_read(graph: StepGraph) -> list[tuple[OpId | None, ...]]:
    """Return, per op and tensor it reads, the op that made the value it reads in eager's order."""
    maker: dict[TensorId, OpId | None] = {}
    read = []
    for op in graph.ops:
        read.append(tuple(maker.get(tensor) for tensor in op.reads))
        maker.update(dict.fromkeys(op.writes, op.id))
    return read
