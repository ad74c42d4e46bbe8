"""The discrete simulation of a plan: when each op and copy runs, and what the device holds.

It serves planning, predictions and the simulated device.  A swap-in counts from the start of its copy, a
swap-out until its end; copies of one channel go one at a time, in the order listed; the iteration is a cycle
that is run until its period repeats.

Source: TENSILE section IV-B, algorithm 1.
Differs: algorithm 1 charges a swap-in at its end, here at its start; stalls and channels are simulated.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tensile_db.errors import InvalidPlan
from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.plan import DeviceSpec, Plan, Recompute, Release, SwapIn, SwapOut, Wait

#: A plan whose period has not settled after this many iterations is judged by the last one.
MAX_ITERATIONS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpan:
    """One run of an op: [begin_ns, end_ns)."""

    op: OpId
    begin_ns: int
    end_ns: int
    recompute: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CopySpan:
    """One copy: [begin_ns, end_ns); a copy to the host whose host copy was valid takes no time."""

    tensor: TensorId
    to_host: bool
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """The last simulated iteration; times are ns from its start."""

    ops: tuple[OpSpan, ...]
    copies: tuple[CopySpan, ...]
    #: (time, device bytes from then on), ascending by time.
    memory: tuple[tuple[int, int], ...]
    #: The most device bytes held at any time of any iteration.
    peak_nbytes: int
    #: From one iteration's start to the next one's, once it repeats.
    period_ns: int

    def idle_before_ns(self) -> NDArray[np.int64]:
        """Return how long before each op nothing but recomputation runs; shape (ops,), in order."""
        spans = [span for span in self.ops if not span.recompute]
        begins_ns = np.array([span.begin_ns for span in spans], dtype=np.int64)
        ends_ns = np.array([0, *(span.end_ns for span in spans[:-1])], dtype=np.int64)
        return begins_ns - ends_ns


@dataclass(slots=True)
class _Copy:
    event: SwapOut | SwapIn
    index: int
    ready_ns: int | None = None
    begin_ns: int | None = None
    end_ns: int = 0


@dataclass(slots=True)
class _Queue:
    """A channel: copies in the order listed, served one at a time."""

    free_ns: int = 0
    pending: deque[_Copy] = field(default_factory=deque)


def persistent_on_host(graph: StepGraph, plan: Plan) -> frozenset[TensorId]:
    """Return the persistent tensors that an iteration leaves, and the next one finds, on the host."""
    last: dict[TensorId, bool] = {}
    position = {op: index for index, op in enumerate(plan.order)}
    copies = [event for event in plan.events if isinstance(event, SwapOut | SwapIn)]
    for event in sorted(
        copies, key=lambda copy: -1 if copy.trigger_op is None else position[copy.trigger_op]
    ):
        last[event.tensor] = isinstance(event, SwapOut)
    return frozenset(tensor for tensor, out in last.items() if out and graph.tensors[tensor].persistent)


def simulate(graph: StepGraph, latencies_ns: Sequence[int], plan: Plan, device: DeviceSpec) -> Timeline:
    """Run the plan on the timeline until its period repeats.

    latencies_ns: by op id, shape (ops,).  Raises InvalidPlan where an op reads a tensor that never arrives.
    """
    return _Simulation(graph, latencies_ns, plan, device).run()


def settle(graph: StepGraph, latencies_ns: Sequence[int], plan: Plan, device: DeviceSpec) -> Plan:
    """Return the plan with swap-ins delayed until the waits between trigger and next op are over.

    A lowered program hands a copy to the device over only after those waits (`lowering.py`).  In a plan the
    copy has but a trigger and a delay, so the delay must say when they are over; else a replay of the events
    would hold both tensors at once.  Raises InvalidPlan as `simulate` does.
    """
    return simulate_settled(graph, latencies_ns, plan, device)[0]


def simulate_settled(
    graph: StepGraph, latencies_ns: Sequence[int], plan: Plan, device: DeviceSpec
) -> tuple[Plan, Timeline]:
    """Return the settled plan, and the timeline on which it settled.

    `simulate` of the settled plan may differ a little where delays were still growing in the last iteration.
    """
    simulation = _Simulation(graph, latencies_ns, plan, device, after_waits=True)
    timeline = simulation.run()
    delays = iter(simulation.delays_ns)
    events = tuple(
        replace(event, delta_ns=next(delays)) if isinstance(event, SwapOut | SwapIn) else event
        for event in plan.events
    )
    return replace(plan, events=events), timeline


class _Simulation:
    def __init__(
        self,
        graph: StepGraph,
        latencies_ns: Sequence[int],
        plan: Plan,
        device: DeviceSpec,
        *,
        after_waits: bool = False,
    ) -> None:
        self._graph = graph
        self._latencies = latencies_ns
        self._plan = plan
        self._device = device
        self._releases: dict[OpId, list[TensorId]] = defaultdict(list)
        self._waits: dict[OpId | None, list[TensorId]] = defaultdict(list)
        self._recomputes: dict[OpId, list[Recompute]] = defaultdict(list)
        self._triggered: dict[OpId | None, list[int]] = defaultdict(list)
        self._events: list[SwapOut | SwapIn] = []
        for event in plan.events:
            match event:
                case SwapOut() | SwapIn():
                    self._triggered[event.trigger_op].append(len(self._events))
                    self._events.append(event)
                case Recompute():
                    self._recomputes[event.before_op].append(event)
                case Wait():
                    self._waits[event.before_op].append(event.tensor)
                case Release():
                    self._releases[event.after_op].append(event.tensor)
        following = dict(zip((None, *plan.order), (*plan.order, None), strict=True))
        #: Per trigger, the op whose waits its copies to the device must sit out.
        self._sit_out: dict[OpId | None, OpId | None] = following if after_waits else {}
        #: Per copy as listed, the delay after its trigger, waits sat out.
        self.delays_ns = [event.delta_ns for event in self._events]
        self._to_host = _Queue()
        self._to_device = _Queue() if device.duplex else self._to_host
        start_on_host = persistent_on_host(graph, plan)
        #: Of every tensor on the device, when it has arrived or will.
        self._arrives_ns: dict[TensorId, int] = {
            t.id: 0 for t in graph.tensors if t.persistent and t.id not in start_on_host
        }
        self._leaves: dict[TensorId, _Copy] = {}
        #: When each tensor's last swap-out has ended, or will.
        self._left_ns: dict[TensorId, int] = {}
        self._host_valid_ns: dict[TensorId, int] = dict.fromkeys(start_on_host, 0)
        self._in_use_until_ns: dict[TensorId, int] = {}
        self._nbytes = [tensor.nbytes for tensor in graph.tensors]
        self._steps: list[tuple[int, int]] = [(0, sum(self._nbytes[t] for t in self._arrives_ns))]
        #: Op, begin, end, whether it is a recomputation.
        self._spans: list[tuple[OpId, int, int, bool]] = []
        moving = {event.tensor for event in self._events}
        #: Per op, which of its tensors are ever copied.
        self._copied = [
            tuple(tensor for tensor in (*op.reads, *op.writes) if tensor in moving) for op in graph.ops
        ]
        self._done_copies: list[CopySpan] = []

    def run(self) -> Timeline:
        begin_ns = end_ns = 0
        signature: tuple[int, ...] = ()
        for _ in range(MAX_ITERATIONS):
            begin_ns, previous = end_ns, signature
            self._spans, self._done_copies = [], []
            end_ns = self._iterate(begin_ns)
            signature = (end_ns - begin_ns, *self._backlog(end_ns))
            if signature == previous:
                break
        peak, memory = self._memory(begin_ns, end_ns)
        return Timeline(
            ops=tuple(
                OpSpan(op=op, begin_ns=begin - begin_ns, end_ns=end - begin_ns, recompute=recompute)
                for op, begin, end, recompute in self._spans
            ),
            copies=tuple(
                sorted((_shift_copy(c, begin_ns) for c in self._done_copies), key=lambda c: c.begin_ns)
            ),
            memory=memory,
            peak_nbytes=peak,
            period_ns=end_ns - begin_ns,
        )

    def _iterate(self, begin_ns: int) -> int:
        copies = [_Copy(event=event, index=index) for index, event in enumerate(self._events)]
        for copy in copies:
            self._queue(copy).pending.append(copy)
        now = begin_ns
        self._trigger(copies, None, now)
        for op in self._plan.order:
            for recompute in self._recomputes.get(op, ()):
                now = self._recompute(recompute, now)
            for tensor in self._waits.get(op, ()):
                now = max(now, self._leave(tensor))
            now = self._run_op(op, now, recompute=False)
            for tensor in self._releases.get(op, ()):
                self._free(tensor, now)
            if op in self._triggered:
                self._trigger(copies, op, now)
        for tensor in self._waits.get(None, ()):
            now = max(now, self._leave(tensor))
        self._settle_departures()
        return now

    def _queue(self, copy: _Copy) -> _Queue:
        return self._to_host if isinstance(copy.event, SwapOut) else self._to_device

    def _trigger(self, copies: list[_Copy], op: OpId | None, now: int) -> None:
        for index in self._triggered.get(op, ()):
            copy = copies[index]
            following = self._sit_out.get(op)
            if isinstance(copy.event, SwapIn) and following is not None:
                self._start_ready()
                waits = self._waits.get(following, ())
                over_ns = max((self._leave(tensor) for tensor in waits), default=now)
                self.delays_ns[index] = max(self.delays_ns[index], over_ns - now)
            copy.ready_ns = now + self.delays_ns[index]
        self._start_ready()

    def _start_ready(self) -> None:
        """Start all copies whose turn it is in their channel."""
        progress = True
        while progress:
            progress = False
            for queue in (self._to_host, self._to_device):
                while queue.pending and queue.pending[0].ready_ns is not None:
                    self._start(queue, queue.pending.popleft())
                    progress = True

    def _start(self, queue: _Queue, copy: _Copy) -> None:
        assert copy.ready_ns is not None
        tensor = copy.event.tensor
        nbytes = self._nbytes[tensor]
        begin = max(copy.ready_ns, queue.free_ns)
        if isinstance(copy.event, SwapOut):
            if tensor not in self._arrives_ns:
                raise InvalidPlan(f"tensor {tensor} is swapped out but is not on the device")
            valid = tensor in self._host_valid_ns
            begin = max(begin, self._arrives_ns[tensor])
            end = begin if valid else begin + copy_ns(nbytes, self._device.d2h_bytes_per_s)
            self._host_valid_ns.setdefault(tensor, end)
            self._leaves[tensor] = copy
            self._left_ns[tensor] = end
        else:
            if tensor in self._leaves:
                self._depart(tensor)
            if tensor not in self._host_valid_ns:
                raise InvalidPlan(f"tensor {tensor} is swapped in but is not on the host")
            begin = max(begin, self._host_valid_ns[tensor])
            end = begin + copy_ns(nbytes, self._device.h2d_bytes_per_s)
            self._arrives_ns[tensor] = end
            self._steps.append((begin, nbytes))
        copy.begin_ns, copy.end_ns, queue.free_ns = begin, end, end
        self._done_copies.append(
            CopySpan(tensor=tensor, to_host=isinstance(copy.event, SwapOut), begin_ns=begin, end_ns=end)
        )

    def _leave(self, tensor: TensorId) -> int:
        """Return when the tensor's swap-out has ended."""
        if tensor not in self._left_ns:
            raise InvalidPlan(f"a wait for tensor {tensor}, which is not being swapped out")
        return self._left_ns[tensor]

    def _depart(self, tensor: TensorId) -> None:
        copy = self._leaves.pop(tensor)
        freed_ns = max(copy.end_ns, self._in_use_until_ns.get(tensor, 0))
        self._steps.append((freed_ns, -self._nbytes[tensor]))
        self._arrives_ns.pop(tensor, None)

    def _settle_departures(self) -> None:
        for tensor in sorted(self._leaves):
            self._depart(tensor)

    def _free(self, tensor: TensorId, now: int) -> None:
        if tensor not in self._arrives_ns or tensor in self._leaves:
            raise InvalidPlan(f"tensor {tensor} is released but is not on the device")
        del self._arrives_ns[tensor]
        self._host_valid_ns.pop(tensor, None)
        self._steps.append((now, -self._nbytes[tensor]))

    def _run_op(self, op_id: OpId, now: int, *, recompute: bool) -> int:
        op, arrives_ns = self._graph.ops[op_id], self._arrives_ns
        for tensor in self._copied[op_id]:
            if tensor in self._leaves and tensor in op.reads:
                self._depart(tensor)
        for tensor in op.reads:
            arrival_ns = arrives_ns.get(tensor)
            if arrival_ns is None:
                raise InvalidPlan(f"op {op_id} {op.target} reads tensor {tensor}, which is not on the device")
            if arrival_ns > now:
                now = arrival_ns
        end = now + self._latencies[op_id]
        for tensor in op.writes:
            if recompute and self._graph.tensors[tensor].persistent:
                continue
            if tensor not in arrives_ns:
                arrives_ns[tensor] = now
                self._steps.append((now, self._nbytes[tensor]))
            elif recompute:
                # The second run makes what is there already; the first one's value stays.
                continue
            self._host_valid_ns.pop(tensor, None)
        for tensor in self._copied[op_id]:
            self._in_use_until_ns[tensor] = end
        if op.workspace_nbytes:
            self._steps += [(now, op.workspace_nbytes), (end, -op.workspace_nbytes)]
        self._spans.append((op_id, now, end, recompute))
        return end

    def _recompute(self, event: Recompute, now: int) -> int:
        before = set(self._arrives_ns)
        for op in event.ops:
            now = self._run_op(op, now, recompute=True)
        made = {tensor for op in event.ops for tensor in self._graph.ops[op].writes}
        for tensor in sorted(made - before - {event.tensor}):
            if not self._graph.tensors[tensor].persistent:
                self._free(tensor, now)
        return now

    def _backlog(self, end_ns: int) -> tuple[int, int]:
        """Return how long each channel goes on into the next iteration."""
        return (max(0, self._to_host.free_ns - end_ns), max(0, self._to_device.free_ns - end_ns))

    def _memory(self, begin_ns: int, end_ns: int) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Return the peak over all iterations, and the last iteration's steps."""
        # What is freed at an instant makes room for what is allocated at the same instant: half-open
        # intervals.
        self._steps[1:] = sorted(self._steps[1:])
        nbytes, peak, memory = 0, 0, [(0, 0)]
        for at_ns, change in self._steps:
            nbytes += change
            peak = max(peak, nbytes)
            if at_ns <= begin_ns:
                memory = [(0, nbytes)]
            elif at_ns <= end_ns:
                memory.append((at_ns - begin_ns, nbytes))
        return peak, tuple(memory)


def _shift_copy(span: CopySpan, by_ns: int) -> CopySpan:
    return CopySpan(
        tensor=span.tensor, to_host=span.to_host, begin_ns=span.begin_ns - by_ns, end_ns=span.end_ns - by_ns
    )
