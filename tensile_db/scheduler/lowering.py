"""From a plan to a program: events take their places between the ops.

Between two ops stand, in this order: what the first one releases, copies to the host, waits, copies to the
device, recomputations, waits for what the second op reads.  So a tensor that arrives is allocated only after
the departures that the second op waits for, and the guaranteed peak needs no clock.

Source: ours; docs/planner.md, "Two peaks".
"""

from collections import defaultdict
from collections.abc import Collection, Iterator

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.plan import Plan, Recompute, Release, SwapIn, SwapOut, Wait
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Instruction, Program
from tensile_db.scheduler.timeline import persistent_on_host
from tensile_db.scheduler.verify import verify


def lower(graph: StepGraph, plan: Plan) -> Program:
    """Return the verified program of a plan.  Raises InvalidPlan where it would lose or miss a tensor."""
    instructions = tuple(_Lowering(graph, plan).instructions())
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


class _Lowering:
    def __init__(self, graph: StepGraph, plan: Plan) -> None:
        self._graph = graph
        self._plan = plan
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
        for event in plan.events:
            match event:
                case SwapOut():
                    self._outs[event.trigger_op].append(CopyOut(tensor=event.tensor, delta_ns=event.delta_ns))
                case SwapIn():
                    self._ins[event.trigger_op].append(CopyIn(tensor=event.tensor, delta_ns=event.delta_ns))
                case Wait():
                    self._waits[event.before_op].append(event.tensor)
                case Recompute():
                    self._recomputes[event.before_op].append(event)
                case Release():
                    self._releases[event.after_op].append(event.tensor)

    def instructions(self) -> Iterator[Instruction]:
        """Yield the instructions of one iteration."""
        previous: OpId | None = None
        for op in self._plan.order:
            yield from self._between(previous, op)
            for recompute in self._recomputes[op]:
                yield from self._recompute(recompute)
            yield from self._run(op, recompute=False)
            previous = op
        yield from self._between(previous, None)
        # What nobody has waited for ends with the iteration.
        yield from (Await(tensor=tensor) for tensor in sorted(self._arriving | self._leaving))

    def _between(self, previous: OpId | None, following: OpId | None) -> Iterator[Instruction]:
        if previous is not None:
            for tensor in self._releases[previous]:
                if tensor in self._arriving:
                    yield self._await(tensor)
                yield Free(tensor=tensor)
                self._present.discard(tensor)
        for out in self._outs[previous]:
            if out.tensor in self._arriving:
                yield self._await(out.tensor)
            yield out
            self._leaving.add(out.tensor)
        for tensor in self._waits[following]:
            yield self._await_departure(tensor)
        for back in self._ins[previous]:
            if back.tensor in self._leaving:
                yield self._await_departure(back.tensor)
            yield back
            self._present.add(back.tensor)
            self._arriving.add(back.tensor)

    def _recompute(self, event: Recompute) -> Iterator[Instruction]:
        before = set(self._present)
        for op in event.ops:
            yield from self._run(op, recompute=True)
        made = {tensor for op in event.ops for tensor in self._graph.ops[op].writes}
        for tensor in sorted(made - before - {event.tensor}):
            if not self._graph.tensors[tensor].persistent:
                yield Free(tensor=tensor)
                self._present.discard(tensor)

    def _run(self, op_id: OpId, *, recompute: bool) -> Iterator[Instruction]:
        op = self._graph.ops[op_id]
        for tensor in sorted({*op.reads, *op.writes} & self._arriving):
            yield self._await(tensor)
        yield Compute(op=op_id, recompute=recompute)
        self._present.update(op.writes)

    def _await_departure(self, tensor: TensorId) -> Await:
        self._leaving.discard(tensor)
        self._present.discard(tensor)
        return Await(tensor=tensor)

    def _await(self, tensor: TensorId) -> Await:
        self._arriving.discard(tensor)
        return Await(tensor=tensor)
