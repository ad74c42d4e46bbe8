"""From a plan to a program: events take their places between the ops.

Between two ops stand, in this order: what the first one releases, copies to the host, waits, copies to the
device, recomputations, waits for what the second op reads or overwrites.  So a tensor that arrives is
allocated only after the departures that the second op waits for, and the guaranteed peak needs no clock.

Source: ours; docs/planner.md, "Two peaks".
"""

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.analysis.start import persistent_on_host
from tensile_db.scheduler.laid_out import tensor_lists_of
from tensile_db.scheduler.plan import (
    Plan,
    Recompute,
    Release,
    SwapIn,
    SwapOut,
    Wait,
    has_choices_of,
    swaps_by_trigger,
)
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Instruction, Program
from tensile_db.scheduler.verify import verify

#: Programs of a graph that are kept: planned again, a job mostly keeps its plan.
_KEPT_PROGRAMS = 4


def lower(graph: StepGraph, plan: Plan) -> Program:
    """Return the verified program of a plan.  Raises InvalidPlan where it would lose or miss a tensor."""
    kept = _programs_of(graph)
    for known, program in kept:
        if known.order == plan.order and known.events == plan.events:
            return program
    for known, program in kept:
        if has_choices_of(known, plan):
            # Neither what is handed over when nor what is held depends on delays.
            made = replace(program, instructions=_delayed(program.instructions, plan))
            break
    else:
        made = _lowered(graph, plan)
    kept.append((plan, made))
    return made


@once_for_each
def _programs_of(_: StepGraph) -> deque[tuple[Plan, Program]]:
    # Filled by `lower`; what is in it never changes.
    return deque(maxlen=_KEPT_PROGRAMS)


def _delayed(instructions: Sequence[Instruction], plan: Plan) -> tuple[Instruction, ...]:
    """Return the instructions of a plan that differs from this one by delays alone, with its delays."""
    delays_ns: dict[tuple[bool, TensorId], deque[int]] = defaultdict(deque)
    for _, event in swaps_by_trigger(plan):
        delays_ns[isinstance(event, SwapOut), event.tensor].append(event.delta_ns)
    made: list[Instruction] = []
    for instruction in instructions:
        if isinstance(instruction, CopyOut):
            instruction = CopyOut(
                tensor=instruction.tensor, delta_ns=delays_ns[True, instruction.tensor].popleft()
            )
        elif isinstance(instruction, CopyIn):
            instruction = CopyIn(
                tensor=instruction.tensor, delta_ns=delays_ns[False, instruction.tensor].popleft()
            )
        made.append(instruction)
    return tuple(made)


def _lowered(graph: StepGraph, plan: Plan) -> Program:
    instructions = _Lowering(graph, plan).instructions()
    start_on_host = tuple(sorted(persistent_on_host(graph, plan)))
    return Program(
        instructions=instructions,
        start_on_host=start_on_host,
        guaranteed_peak_nbytes=verify(graph, instructions, start_on_host),
        resident_nbytes=_resident_nbytes(graph, start_on_host),
    )


def _resident_nbytes(graph: StepGraph, start_on_host: Collection[TensorId]) -> int:
    on_host = set(start_on_host)
    return sum(t.nbytes for t in graph.tensors if t.persistent and t.id not in on_host)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The instructions that any program of a graph is made of; by tensor id or op id."""

    waits: list[Await]
    frees: list[Free]
    computes: list[Compute]
    again: list[Compute]
    persistent: list[bool]
    #: What each op reads and writes.
    touched: list[tuple[TensorId, ...]]


@once_for_each
def _known_of(graph: StepGraph) -> _Known:
    return _Known(
        waits=[Await(tensor=tensor.id) for tensor in graph.tensors],
        frees=[Free(tensor=tensor.id) for tensor in graph.tensors],
        computes=[Compute(op=op.id) for op in graph.ops],
        again=[Compute(op=op.id, recompute=True) for op in graph.ops],
        persistent=[tensor.persistent for tensor in graph.tensors],
        touched=[(*op.reads, *op.writes) for op in graph.ops],
    )


class _Lowering:
    def __init__(self, graph: StepGraph, plan: Plan) -> None:
        self._ops = graph.ops
        self._order = plan.order
        self._known = _known_of(graph)
        self._releases: dict[OpId, list[TensorId]] = defaultdict(list)
        self._waits: dict[OpId | None, list[TensorId]] = defaultdict(list)
        self._recomputes: dict[OpId, list[Recompute]] = defaultdict(list)
        self._outs: dict[OpId | None, list[CopyOut]] = defaultdict(list)
        self._ins: dict[OpId | None, list[CopyIn]] = defaultdict(list)
        #: Tensors whose copy to the device nobody has waited for yet.
        self._arriving: set[TensorId] = set()
        #: Tensors whose copy to the host nobody has waited for yet.
        self._leaving: set[TensorId] = set()
        #: What ops and copies have put on the device in this iteration, less what has left.
        self._present: set[TensorId] = set()
        self._made: list[Instruction] = []
        #: The ops with tensors that are copied or made again: all others find theirs where they left them.
        self._mindful: set[OpId] = set()
        touched_by = tensor_lists_of(graph).touched_by
        for event in plan.events:
            # Releases first, for most plans have most of them; `match` would take twice the time.
            if isinstance(event, Release):
                self._releases[event.after_op].append(event.tensor)
            elif isinstance(event, Wait):
                self._waits[event.before_op].append(event.tensor)
            elif isinstance(event, Recompute):
                self._recomputes[event.before_op].append(event)
                for op in event.ops:
                    for tensor in self._ops[op].writes:
                        self._mindful.update(touched_by[tensor])
            elif isinstance(event, SwapOut):
                self._outs[event.trigger_op].append(CopyOut(tensor=event.tensor, delta_ns=event.delta_ns))
                self._mindful.update(touched_by[event.tensor])
            elif isinstance(event, SwapIn):
                self._ins[event.trigger_op].append(CopyIn(tensor=event.tensor, delta_ns=event.delta_ns))
                self._mindful.update(touched_by[event.tensor])
            else:
                assert_never(event)

    def instructions(self) -> tuple[Instruction, ...]:
        """Return the instructions of one iteration."""
        previous: OpId | None = None
        computes, made = self._known.computes, self._made
        # Nothing stands between most ops.
        followed = self._releases.keys() | self._outs.keys() | self._ins.keys()
        preceded = self._waits.keys()
        for op in self._order:
            if previous in followed or op in preceded:
                self._between(previous, op)
            if op in self._recomputes:
                for recompute in self._recomputes[op]:
                    self._recompute(recompute)
            if op in self._mindful:
                self._run(op, computes[op])
            else:
                made.append(computes[op])
            previous = op
        self._between(previous, None)
        # What nobody has waited for ends with the iteration.
        for tensor in sorted(self._arriving | self._leaving):
            self._made.append(self._known.waits[tensor])
        return tuple(self._made)

    def _between(self, previous: OpId | None, following: OpId | None) -> None:
        if previous in self._releases:
            self._free(self._releases[previous])
        if previous in self._outs:
            for out in self._outs[previous]:
                if out.tensor in self._arriving:
                    self._await(out.tensor)
                self._made.append(out)
                self._leaving.add(out.tensor)
        if following in self._waits:
            for tensor in self._waits[following]:
                self._await_departure(tensor)
        if previous in self._ins:
            for back in self._ins[previous]:
                if back.tensor in self._leaving:
                    self._await_departure(back.tensor)
                self._made.append(back)
                self._present.add(back.tensor)
                self._arriving.add(back.tensor)

    def _recompute(self, event: Recompute) -> None:
        made = {tensor for op in event.ops for tensor in self._ops[op].writes} - {event.tensor}
        fresh = sorted(made - self._present)
        for op in event.ops:
            self._run(op, self._known.again[op])
        self._free([tensor for tensor in fresh if not self._known.persistent[tensor]])

    def _free(self, tensors: Sequence[TensorId]) -> None:
        for tensor in tensors:
            if tensor in self._arriving:
                self._await(tensor)
            self._made.append(self._known.frees[tensor])
            self._present.discard(tensor)

    def _run(self, op_id: OpId, compute: Compute) -> None:
        touched = self._known.touched[op_id]
        if not self._arriving.isdisjoint(touched):
            for tensor in sorted(self._arriving.intersection(touched)):
                self._await(tensor)
        self._made.append(compute)
        self._present.update(self._ops[op_id].writes)

    def _await_departure(self, tensor: TensorId) -> None:
        self._leaving.discard(tensor)
        self._present.discard(tensor)
        self._made.append(self._known.waits[tensor])

    def _await(self, tensor: TensorId) -> None:
        self._arriving.discard(tensor)
        self._made.append(self._known.waits[tensor])
