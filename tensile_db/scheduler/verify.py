"""Proof, before anything runs, that a program loses nothing and how much it can hold.

Walks the instructions once from the state in which every iteration starts, and checks that every op reads
the values that it reads in eager's order, that the end leaves that state, and that each persistent tensor has
the value then that eager's order leaves it, and that random numbers are drawn in that order. Shares no code
with planners.

Of two ops that only write a tensor, which one is last shows in what reads it: in this iteration, or, where it
is persistent, in the next one. What is read by neither has no value that matters.

Source: ours; docs/planner.md, "Two peaks".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Any

from tensile_db.errors import InvalidPlan
from tensile_db.graph import Op, OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.once import once_for_each
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


# Read at each instruction: a member of an Enum takes longer to look up.
_NOWHERE, _DEVICE = _Where.NOWHERE, _Where.DEVICE

#: Where a tensor takes up device memory.
_HELD = (_Where.DEVICE, _Where.LEAVING, _Where.ARRIVING)


def verify(graph: StepGraph, instructions: Sequence[Instruction], start_on_host: Sequence[TensorId]) -> int:
    """Return the guaranteed peak in bytes; raise InvalidPlan naming the first instruction that is wrong."""
    checker = _Checker(graph, start_on_host)
    start = list(checker.where)
    steps = checker.steps
    for index, instruction in enumerate(instructions):
        try:
            steps[type(instruction)](instruction)
        except InvalidPlan as error:
            raise InvalidPlan(f"instruction {index} ({instruction}): {error.message}") from None
    for tensor, (begins, ends) in enumerate(zip(start, checker.where, strict=True)):
        if begins is not ends:
            raise InvalidPlan(f'tensor {tensor} ("{graph.tensors[tensor].name}") {_unlike(begins, ends)}')
    missing = [op.id for op in graph.ops if op.id not in checker.computed]
    if missing:
        raise InvalidPlan(f"ops {missing[:5]} never run")
    checker.check_last_values()
    _check_draws(graph, instructions)
    return checker.peak_nbytes


def _check_draws(graph: StepGraph, instructions: Sequence[Instruction]) -> None:
    """Check that ops draw random numbers, all from one generator, in eager's order."""
    expected = _expected_of(graph).draw
    if expected:
        drawn = [each.op for each in instructions if isinstance(each, Compute) and each.op in expected]
        for before, op in pairwise(drawn):
            if op < before:
                raise InvalidPlan(
                    f"op {before} draws random numbers before op {op} does, but in eager's order behind it"
                )


def _unlike(begins: _Where, ends: _Where) -> str:
    """Say of a tensor that the end of an iteration is not what the next one begins with."""
    if begins is _NOWHERE:
        return f"is not released in the end: it is still {_PLACES[ends]} when the iteration ends"
    return f"is {_PLACES[begins]} when an iteration begins, but {_PLACES[ends]} when it ends"


#: For people.
_PLACES = {
    _Where.NOWHERE: "nowhere",
    _Where.DEVICE: "on the device",
    _Where.LEAVING: "on its way to the host",
    _Where.HOST: "on the host",
    _Where.ARRIVING: "on its way to the device",
}


class _Checker:
    def __init__(self, graph: StepGraph, start_on_host: Sequence[TensorId]) -> None:
        self._ops = graph.ops
        expected = _expected_of(graph)
        self._nbytes, self._persistent = expected.nbytes, expected.persistent
        self._values_read, self._last_writers = expected.values_read, expected.last_writers
        #: By tensor id.
        self.where = [_Where.DEVICE if persistent else _Where.NOWHERE for persistent in self._persistent]
        for tensor in start_on_host:
            self.where[tensor] = _Where.HOST
        #: Ops that have run, once.
        self.computed: set[int] = set()
        #: Per tensor, the op that made the value it has; None: it has it from the iteration's start.
        self._maker: list[OpId | None] = [None] * len(self.where)
        self._held_nbytes = sum(
            nbytes for nbytes, where in zip(self._nbytes, self.where, strict=True) if where in _HELD
        )
        self.peak_nbytes = self._held_nbytes

    @property
    def steps(self) -> dict[type[Instruction], Callable[[Any], None]]:
        """What checks and carries out an instruction, by its kind."""
        return {
            Compute: self._compute,
            CopyOut: self._copy_out,
            CopyIn: self._copy_in,
            Await: self._await,
            Free: self._free,
        }

    def check_last_values(self) -> None:
        """Check that each persistent tensor enters the next iteration with the value that eager leaves it."""
        for tensor, last in self._last_writers:
            if (maker := self._maker[tensor]) != last:
                raise InvalidPlan(
                    f"the persistent tensor {tensor} ends an iteration with the value that op {maker} writes,"
                    f" but in eager's order op {last} writes it last"
                )

    def _copy_out(self, instruction: CopyOut) -> None:
        self._expect(instruction.tensor, _Where.DEVICE)
        self.where[instruction.tensor] = _Where.LEAVING

    def _copy_in(self, instruction: CopyIn) -> None:
        tensor = instruction.tensor
        self._expect(tensor, _Where.HOST)
        self.where[tensor] = _Where.ARRIVING
        self._hold(self._nbytes[tensor])

    def _free(self, instruction: Free) -> None:
        tensor = instruction.tensor
        self._expect(tensor, _DEVICE)
        if self._persistent[tensor]:
            raise InvalidPlan(f"frees the persistent tensor {tensor}")
        self.where[tensor] = _NOWHERE
        self._held_nbytes -= self._nbytes[tensor]

    def _await(self, instruction: Await) -> None:
        tensor = instruction.tensor
        if self.where[tensor] is _Where.LEAVING:
            self.where[tensor] = _Where.HOST
            self._held_nbytes -= self._nbytes[tensor]
        elif self.where[tensor] is _Where.ARRIVING:
            self.where[tensor] = _Where.DEVICE
        else:
            raise InvalidPlan(f"waits for tensor {tensor}, of which no copy is under way")

    def _compute(self, instruction: Compute) -> None:
        op_id, recompute = instruction.op, instruction.recompute
        op, where, makers = self._ops[op_id], self.where, self._maker
        again = op_id in self.computed
        if recompute and not (again and op.recomputable):
            raise InvalidPlan(f"runs op {op_id} again, which has not run or must not run twice")
        if again and not recompute:
            raise InvalidPlan(f"runs op {op_id} twice")
        for tensor, maker in self._values_read[op_id]:
            if where[tensor] is not _DEVICE:
                raise InvalidPlan(f"op {op.id} reads tensor {tensor}, which is {where[tensor].name}")
            if makers[tensor] != maker:
                self._check_value(op, tensor, recompute=recompute)
        made = [t for t in op.writes if not self._persistent[t]] if recompute else op.writes
        # A second run makes all its results anew, also those whose first value is still there.
        held_nbytes, extra_nbytes = self._held_nbytes, op.workspace_nbytes
        for tensor in made:
            if where[tensor] is _NOWHERE:
                where[tensor] = _DEVICE
                held_nbytes += self._nbytes[tensor]
            elif where[tensor] is not _DEVICE:
                raise InvalidPlan(f"op {op.id} writes tensor {tensor}, which is {where[tensor].name}")
            elif recompute and tensor not in op.reads:
                extra_nbytes += self._nbytes[tensor]
            makers[tensor] = op_id
        self._held_nbytes = held_nbytes
        if held_nbytes + extra_nbytes > self.peak_nbytes:
            self.peak_nbytes = held_nbytes + extra_nbytes
        self.computed.add(op_id)

    def _check_value(self, op: Op, tensor: TensorId, *, recompute: bool) -> None:
        """Check an op that reads another value than it reads in eager's order."""
        if tensor in op.unread:
            return
        if not recompute:
            raise InvalidPlan(f"op {op.id} reads tensor {tensor} with a value that is not its last one")
        # By what `recomputable` promises, no other result of an op depends on state that it updates.
        if not (self._persistent[tensor] and tensor in op.writes):
            raise InvalidPlan(f"runs op {op.id} again, but tensor {tensor} has changed since")

    def _expect(self, tensor: TensorId, where: _Where) -> None:
        if self.where[tensor] is not where:
            raise InvalidPlan(f"tensor {tensor} is {self.where[tensor].name}, not {where.name}")

    def _hold(self, nbytes: int) -> None:
        self._held_nbytes += nbytes
        self.peak_nbytes = max(self.peak_nbytes, self._held_nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Expected:
    """What a graph says of its tensors and ops."""

    #: By tensor id.
    nbytes: list[int]
    persistent: list[bool]
    #: Per op, the tensors it reads, each with the op that made the value it reads in eager's order.
    values_read: list[tuple[tuple[TensorId, OpId | None], ...]]
    #: The persistent tensors that ops write, each with the op that does so last in eager's order.
    last_writers: list[tuple[TensorId, OpId]]
    #: Ops that draw random numbers.
    draw: frozenset[OpId]


@once_for_each
def _expected_of(graph: StepGraph) -> _Expected:
    last_writer = {tensor: op.id for op in graph.ops for tensor in op.writes}
    return _Expected(
        nbytes=[tensor.nbytes for tensor in graph.tensors],
        persistent=[tensor.persistent for tensor in graph.tensors],
        values_read=_values_read(graph),
        last_writers=[
            (t.id, last_writer[t.id]) for t in graph.tensors if t.persistent and t.id in last_writer
        ],
        draw=frozenset(op.id for op in graph.ops if op.draws(graph.tensors)),
    )


def _values_read(graph: StepGraph) -> list[tuple[tuple[TensorId, OpId | None], ...]]:
    maker: dict[TensorId, OpId | None] = {}
    read = []
    for op in graph.ops:
        read.append(tuple((tensor, maker.get(tensor)) for tensor in op.reads))
        maker.update(dict.fromkeys(op.writes, op.id))
    return read
