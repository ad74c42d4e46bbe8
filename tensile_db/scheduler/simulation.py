"""The discrete simulation of a plan: an iteration run again and again until its period repeats.

A swap-in counts from the start of its copy, a swap-out until its end; copies of one channel go one at a time,
in the order listed; the iteration is a cycle.

It is half of planning, so what a plan says is laid out first (`laid_out.py`), and an iteration that ends as
it began is not run again.

Source: TENSILE section IV-B, algorithm 1.
Differs: algorithm 1 charges a swap-in at its end, here at its start; stalls and channels are simulated.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from tensile_db.errors import InvalidPlan
from tensile_db.graph import Op, OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.start import persistent_on_host
from tensile_db.scheduler.laid_out import Again, LaidOut, op_after, tensor_lists_of
from tensile_db.scheduler.plan import DeviceSpec, Plan
from tensile_db.scheduler.simulated import Course

#: A plan whose period has not settled after this many iterations is judged by the last one.
MAX_ITERATIONS = 12


class TooSlow(Exception):
    """An iteration takes longer than who asked wants to know."""


class Simulation:
    """One plan on one device."""

    def __init__(
        self,
        graph: StepGraph,
        latencies_ns: Sequence[int],
        plan: Plan,
        device: DeviceSpec,
        *,
        after_waits: bool = False,
    ) -> None:
        """latencies_ns: by op id, shape (ops,).  after_waits: copies to the device sit waits out."""
        self._ops = graph.ops
        self._latencies = latencies_ns
        self._order = plan.order
        tensors = tensor_lists_of(graph)
        self._nbytes, self._persistent = tensors.nbytes, tensors.persistent
        laid_out = LaidOut(graph, plan, device)
        self._releases, self._waits = laid_out.releases, laid_out.waits
        self._recomputes, self._triggered = laid_out.recomputes, laid_out.triggered
        self._copies, self._ops_of_copied = laid_out.copies, laid_out.ops_of_copied
        #: By copy as listed, the delay after its trigger; waits that are sat out make it longer.
        self._delays_ns = list(laid_out.delays_ns)
        #: Where copies take the ops' time: when those begin that no op has been longer for yet, and by what.
        self._costly: list[tuple[int, int]] = []
        self._ops_lose_ns = device.ops_lose_ns if device.copies_cost_ops else None
        #: Per trigger, the op whose waits its copies to the device must sit out.
        self._sit_out = op_after(plan.order) if after_waits else {}
        #: Of each channel: its copies in the order listed, and when it is free.
        self._channels = laid_out.channels
        self._free_ns = [0] * len(self._channels)
        #: Of each channel, how many of its copies have begun in this iteration.
        self._begun = [0] * len(self._channels)
        #: Per copy, when it may begin; None: it is not triggered yet.
        self._ready_ns: list[int | None] = []
        #: Of this iteration's copies to the host, those that are none: the host has the value.
        self._copyless: set[int] = set()
        self._start_on_host = persistent_on_host(graph, plan)
        #: Of every tensor on the device, when it has arrived or will.
        self._arrives_ns: dict[TensorId, int] = dict.fromkeys(tensors.persistent_ids, 0)
        for tensor in self._start_on_host:
            del self._arrives_ns[tensor]
        self._start_on_device = frozenset(self._arrives_ns)
        #: Of tensors that have left or are leaving, and not departed yet, when their copy has ended.
        self._leaves_ns: dict[TensorId, int] = {}
        #: When each tensor's last swap-out has ended, or will.
        self._left_ns: dict[TensorId, int] = {}
        self._host_valid_ns: dict[TensorId, int] = dict.fromkeys(self._start_on_host, 0)
        self._in_use_until_ns: dict[TensorId, int] = {}
        #: By op, when it must have ended, where that is looked at.
        self._latest_ns: dict[OpId, int] = {}
        self._steps: list[int] = [0, sum(self._nbytes[t] for t in self._arrives_ns)]
        self._runs: list[int] = []
        self._moves: list[tuple[TensorId, bool, int, int]] = []

    def run(self, *, first_within_ns: int | None = None) -> Course:
        """Run iterations until the period repeats.

        first_within_ns: give up as soon as an op whose tensors are copied ends too late for the first
        iteration to end within this.  Raises InvalidPlan where an op, or a copy, finds a tensor that is not
        where it must be, and TooSlow where it gives up.
        """
        begin_ns = end_ns = first_ns = 0
        signature: tuple[int, ...] = ()
        steady = False
        if first_within_ns is not None:
            self._set_latest(first_within_ns)
        for number in range(MAX_ITERATIONS):
            begin_ns, previous = end_ns, signature
            self._runs, self._moves = [], []
            end_ns = self._iterate(begin_ns)
            if number == 0:
                first_ns = end_ns
                self._latest_ns.clear()
            late_ns = [max(0, free_ns - end_ns) for free_ns in self._free_ns]
            signature = (end_ns - begin_ns, sum(lost_ns for _, lost_ns in self._costly), *late_ns)
            steady = number == 0 and self._is_as_at_start(end_ns)
            if signature == previous or steady:
                break
        return Course(
            begin_ns=begin_ns,
            end_ns=end_ns,
            first_ns=first_ns,
            runs=self._runs,
            moves=self._moves,
            delays_ns=self._delays_ns,
            steady=steady,
            steps=self._steps,
        )

    def _set_latest(self, within_ns: int) -> None:
        """Say when ops must have ended for the iteration to end within this: without stalls from there on."""
        for op in reversed(self._order):
            self._latest_ns[op] = within_ns
            within_ns -= self._latencies[op]

    def _is_as_at_start(self, end_ns: int) -> bool:
        """Whether all is as it was when the first iteration began: another one would do the same."""
        return (
            end_ns > 0
            and not self._costly
            and max(self._free_ns) <= end_ns
            and self._host_valid_ns.keys() == self._start_on_host
            and self._arrives_ns.keys() == self._start_on_device
        )

    def _iterate(self, now: int) -> int:
        self._ready_ns = [None] * len(self._copies)
        self._begun = [0] * len(self._channels)
        self._copyless.clear()
        recomputes, waits = self._recomputes, self._waits
        releases, triggered = self._releases, self._triggered
        ops, latencies_ns, nbytes = self._ops, self._latencies, self._nbytes
        ops_of_copied = self._ops_of_copied
        arrives_ns, steps, runs, costly = self._arrives_ns, self._steps, self._runs, self._costly
        latest_ns = self._latest_ns
        if None in triggered:
            self._trigger(None, now)
        for op in self._order:
            if op in waits:
                now = max(now, self._left_by_ns(waits[op]))
            if op in recomputes:
                for again in recomputes[op]:
                    now = self._recompute(again, now)
            if op in ops_of_copied or costly:
                now = self._run_op(op, now, recompute=False)
                if op in latest_ns and now > latest_ns[op]:
                    raise TooSlow
            else:
                # Most ops are of tensors that are never copied; the same as `_run_op`, in less time.
                record = ops[op]
                for tensor in record.reads:
                    if tensor not in arrives_ns:
                        raise _absent(record, tensor)
                end_ns = now + latencies_ns[op]
                for tensor in record.writes:
                    if tensor not in arrives_ns:
                        arrives_ns[tensor] = now
                        steps += (now, nbytes[tensor])
                if record.workspace_nbytes:
                    steps += (now, record.workspace_nbytes, end_ns, -record.workspace_nbytes)
                runs += (op, now, end_ns, False)
                now = end_ns
            if op in releases:
                self._free(releases[op], now)
            if op in triggered:
                self._trigger(op, now)
        if None in waits:
            now = max(now, self._left_by_ns(waits[None]))
        for tensor in sorted(self._leaves_ns):
            self._depart(tensor)
        return now

    def _trigger(self, op: OpId | None, now: int) -> None:
        next_op = self._sit_out.get(op)
        sit_out = () if next_op is None else self._waits.get(next_op, ())
        over_ns: int | None = None
        for index in self._triggered[op]:
            tensor, out, _ = self._copies[index]
            if not out and sit_out:
                # Looked at anew only where a swap-out may have begun since: that moves the waits' end.
                if self._start_ready() or over_ns is None:
                    over_ns = self._left_by_ns(sit_out)
                self._delays_ns[index] = max(self._delays_ns[index], over_ns - now)
            self._ready_ns[index] = ready_ns = now + self._delays_ns[index]
            if out and tensor in self._host_valid_ns and tensor in self._arrives_ns:
                # Nothing is copied, so nothing has to wait for its turn.
                self._leave_copyless(tensor, ready_ns)
                self._copyless.add(index)
                over_ns = None
        self._start_ready()

    def _start_ready(self) -> bool:
        """Start all copies whose turn it is in their channel; return whether there are any."""
        ready_ns, have_started = self._ready_ns, False
        for channel, copies in enumerate(self._channels):
            begun = self._begun[channel]
            while begun < len(copies):
                index = copies[begun]
                copy_ready_ns = ready_ns[index]
                if copy_ready_ns is None:
                    break
                begun += 1
                if index not in self._copyless:
                    self._start(channel, index, copy_ready_ns)
                    have_started = True
            self._begun[channel] = begun
        return have_started

    def _start(self, channel: int, index: int, ready_ns: int) -> None:
        tensor, out, takes_ns = self._copies[index]
        begin = max(ready_ns, self._free_ns[channel])
        if out:
            if tensor not in self._arrives_ns:
                raise InvalidPlan(f"tensor {tensor} is swapped out but is not on the device")
            begin = max(begin, self._arrives_ns[tensor])
            end = begin + takes_ns
            self._host_valid_ns[tensor] = self._leaves_ns[tensor] = self._left_ns[tensor] = end
        else:
            if tensor in self._leaves_ns:
                self._depart(tensor)
            if tensor not in self._host_valid_ns:
                raise InvalidPlan(f"tensor {tensor} is swapped in but is not on the host")
            begin = max(begin, self._host_valid_ns[tensor])
            end = begin + takes_ns
            self._arrives_ns[tensor] = end
            self._steps += (begin, self._nbytes[tensor])
        self._free_ns[channel] = end
        if self._ops_lose_ns is not None and end > begin:
            heappush(self._costly, (begin, self._ops_lose_ns(self._nbytes[tensor])))
        self._moves.append((tensor, out, begin, end))

    def _leave_copyless(self, tensor: TensorId, ready_ns: int) -> None:
        """Let a tensor go whose value the host has."""
        at_ns = max(ready_ns, self._arrives_ns[tensor], self._host_valid_ns[tensor])
        self._leaves_ns[tensor] = self._left_ns[tensor] = at_ns
        self._moves.append((tensor, True, at_ns, at_ns))

    def _left_by_ns(self, tensors: Sequence[TensorId]) -> int:
        """Return when the swap-outs of all of them have ended."""
        left_ns = self._left_ns
        try:
            return max([left_ns[tensor] for tensor in tensors])
        except KeyError as missing:
            raise InvalidPlan(
                f"a wait for tensor {missing.args[0]}, which is not being swapped out"
            ) from None

    def _depart(self, tensor: TensorId) -> None:
        freed_ns = max(self._leaves_ns.pop(tensor), self._in_use_until_ns.get(tensor, 0))
        self._steps += (freed_ns, -self._nbytes[tensor])
        self._arrives_ns.pop(tensor, None)

    def _free(self, tensors: Sequence[TensorId], now: int) -> None:
        for tensor in tensors:
            if tensor not in self._arrives_ns or tensor in self._leaves_ns:
                raise InvalidPlan(f"tensor {tensor} is released but is not on the device")
            del self._arrives_ns[tensor]
            self._host_valid_ns.pop(tensor, None)
            self._steps += (now, -self._nbytes[tensor])

    def _run_op(self, op_id: OpId, now: int, *, recompute: bool) -> int:
        op, arrives_ns = self._ops[op_id], self._arrives_ns
        has_copied, leaves_ns = op_id in self._ops_of_copied, self._leaves_ns
        if leaves_ns:
            for tensor in op.reads:
                if tensor in leaves_ns:
                    self._depart(tensor)
        for tensor in op.reads:
            arrival_ns = arrives_ns.get(tensor)
            if arrival_ns is None:
                raise _absent(op, tensor)
            if arrival_ns > now:
                now = arrival_ns
        if has_copied:
            # What arrives would land on what is written, and undo it.
            for tensor in op.writes:
                now = max(now, arrives_ns.get(tensor, now))
        end = now + self._latencies[op_id]
        while self._costly and self._costly[0][0] <= now:
            end += heappop(self._costly)[1]
        for tensor in op.writes:
            if recompute and self._persistent[tensor]:
                continue
            if tensor not in arrives_ns:
                arrives_ns[tensor] = now
                self._steps += (now, self._nbytes[tensor])
            elif recompute:
                # The second run makes what is there already; the first one's value stays.
                continue
            if has_copied:
                self._host_valid_ns.pop(tensor, None)
        if has_copied:
            in_use_until_ns = self._in_use_until_ns
            for tensor in op.reads:
                in_use_until_ns[tensor] = end
            for tensor in op.writes:
                in_use_until_ns[tensor] = end
        if op.workspace_nbytes:
            self._steps += (now, op.workspace_nbytes, end, -op.workspace_nbytes)
        self._runs += (op_id, now, end, recompute)
        return end

    def _recompute(self, again: Again, now: int) -> int:
        fresh = [tensor for tensor in again.results if tensor not in self._arrives_ns]
        for op in again.ops:
            now = self._run_op(op, now, recompute=True)
        self._free(fresh, now)
        return now


def _absent(op: Op, tensor: TensorId) -> InvalidPlan:
    return InvalidPlan(f"op {op.id} {op.target} reads tensor {tensor}, which is not on the device")
