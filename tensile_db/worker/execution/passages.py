"""Which of a program's instructions are taken down together, and which are done one by one between them.

What differs from iteration to iteration cannot be taken down: ops that take a number that changes, unless
the number lies in device memory (held_ops.py).  A copy that goes on across such an op is none of a passage
either, since a passage ends only when all that it began has ended, and its kernels would wait.  Batches are
brought before the iteration, into memory that is theirs until it is freed, and what is reported stays where
it is until the iteration has ended; so neither parts anything.

Source: ours.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from tensile_db.capture.step import Call, CapturedStep, RandomSource, Scalar
from tensile_db.graph import OpId, TensorId
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Instruction

#: To replay fewer ops together takes no less time than to run them one by one.
LEAST_OPS = 3


@dataclass(frozen=True, slots=True)
class Passage:
    """Instructions [begin, end) that are taken down together."""

    begin: int
    end: int


def passages_of(
    step: CapturedStep, instructions: Sequence[Instruction], *, held: Collection[OpId] = ()
) -> tuple[Passage, ...]:
    """Return the passages, in order; what lies in none is done one by one.

    held: ops whose changing numbers lie in device memory, so that they are as any other.
    """
    single = {
        index
        for index, instruction in enumerate(instructions)
        if _differs(step, instruction) and not (isinstance(instruction, Compute) and instruction.op in held)
    }
    copies = tuple(_copies(instructions))
    _part_copies(copies, single)
    for passage in tuple(_runs(step, instructions, single)):
        if _is_short(step, instructions[passage.begin : passage.end]):
            single.update(range(passage.begin, passage.end))
            _part_copies(copies, single)
    return tuple(_runs(step, instructions, single))


def draws(call: Call) -> bool:
    """Tell whether a call draws random numbers."""
    return call.draws_from_default_generator or _holds(call, RandomSource)


def is_reported_late(step: CapturedStep, instructions: Sequence[Instruction]) -> bool:
    """Tell whether what is reported still has its value when the iteration has ended."""
    reported = {view.tensor for view in step.outputs.values()}
    ops = [step.graph.ops[each.op] for each in instructions if isinstance(each, Compute)]
    report = next((index for index, op in enumerate(ops) if op.target == "tensile.report"), len(ops))
    return not any(reported.intersection(op.writes) for op in ops[report + 1 :])


def _differs(step: CapturedStep, instruction: Instruction) -> bool:
    """Tell whether an op takes a number that changes from iteration to iteration."""
    return isinstance(instruction, Compute) and _holds(step.calls[instruction.op], Scalar)


def _holds(call: Call, kind: type) -> bool:
    arguments = (*call.args, *call.kwargs.values(), *(call.recompute_args or ()))
    return any(
        isinstance(each, kind)
        or (isinstance(each, list | tuple) and any(isinstance(item, kind) for item in each))
        for each in arguments
    )


def _copies(instructions: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """Yield the places of each copy's beginning and of the wait for its end."""
    begun: dict[TensorId, int] = {}
    for index, instruction in enumerate(instructions):
        match instruction:
            case CopyOut(tensor=tensor) | CopyIn(tensor=tensor):
                begun[tensor] = index
            case Await(tensor=tensor):
                yield begun.pop(tensor), index
            case Free() | Compute():
                pass


def _part_copies(copies: Sequence[tuple[int, int]], single: set[int]) -> None:
    """Have copies that go on across what is done one by one be so, too, until none is left."""
    found = True
    while found:
        found = False
        for begin, end in copies:
            if begin in single and end in single:
                continue
            if any(index in single for index in range(begin, end + 1)):
                single.update((begin, end))
                found = True


def _runs(step: CapturedStep, instructions: Sequence[Instruction], single: set[int]) -> Iterator[Passage]:
    begin = 0
    for index in range(len(instructions) + 1):
        if index == len(instructions) or index in single:
            if not all(_is_still(step, each) for each in instructions[begin:index]):
                yield Passage(begin, index)
            begin = index + 1


def _is_still(step: CapturedStep, instruction: Instruction) -> bool:
    """Tell whether the device has nothing to do."""
    if isinstance(instruction, Compute):
        return step.calls[instruction.op].function is None
    return isinstance(instruction, Free)


def _is_short(step: CapturedStep, instructions: Sequence[Instruction]) -> bool:
    """Tell whether these are a few ops only, which make nothing: for that, memory must be the passage's."""
    ops: list[OpId] = []
    for instruction in instructions:
        match instruction:
            case Compute(op=op, recompute=False):
                ops.append(op)
            case _ if not _is_still(step, instruction):
                return False
    return len(ops) < LEAST_OPS and all(view is None for op in ops for view in step.calls[op].outputs)
