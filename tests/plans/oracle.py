"""A second opinion on plans: replays a plan's JSON, knowing nothing else.

Shares no code with the planner.  Where `scheduler/timeline.py` walks the ops and computes times ahead, this
runs a clock: at each instant what has ended ends, then what can start starts.
"""

import heapq
import itertools
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

ITERATIONS = 6

#: What says of an event of each kind which op it comes before or after.
BOUND_TO = {
    "swap_out": "trigger_op",
    "swap_in": "trigger_op",
    "recompute": "before_op",
    "wait": "before_op",
    "release": "after_op",
}


class Refused(Exception):
    """The plan cannot be replayed."""


@dataclass
class Replay:
    """What the clock saw."""

    peak_nbytes: int = 0
    starts_ns: list[int] = field(default_factory=list)
    #: Iteration, op, begin, end, whether it ran again.
    runs: list[tuple[int, int, int, int, bool]] = field(default_factory=list)
    #: Iteration of the trigger, tensor, whether to the host, begin, end.
    copies: list[tuple[int, int, bool, int, int]] = field(default_factory=list)

    @property
    def period_ns(self) -> int:
        """From the start of the last iteration but one to the start of the last."""
        return self.starts_ns[-1] - self.starts_ns[-2]

    @property
    def timeline(self) -> dict[str, Any]:
        """The last iteration but one, as a document tells it; copies of one instant ascending by tensor."""
        number, start_ns = len(self.starts_ns) - 2, self.starts_ns[-2]
        return {
            "period_ns": self.period_ns,
            "runs": [
                {"op": op, "begin_ns": begin - start_ns, "end_ns": end - start_ns, "recompute": again}
                for of, op, begin, end, again in self.runs
                if of == number
            ],
            "copies": [
                {"tensor": tensor, "to_host": out, "begin_ns": begin - start_ns, "end_ns": end - start_ns}
                for of, tensor, out, begin, end in sorted(self.copies, key=lambda copy: (copy[3], copy[1:3]))
                if of == number
            ],
        }


# By identity: two copies may be alike, and queues are searched for this very one.
@dataclass(eq=False)
class _Copy:
    #: Its place among all copies, in whose order the queues are.
    number: int
    out: bool
    tensor: int
    trigger: tuple[int, int | None]
    delta_ns: int


def replay(document: dict[str, Any], iterations: int = ITERATIONS) -> Replay:
    """Run a few iterations of a plan by the clock; raise Refused where it gets stuck or loses a tensor."""
    return _Clock(document).run(iterations)


class _Clock:
    def __init__(self, document: dict[str, Any]) -> None:
        self.tensors = {t["id"]: t for t in document["graph"]["tensors"]}
        self.ops = {op["id"]: op for op in document["graph"]["ops"]}
        self.device = document["device"]
        self.order = document["plan"]["order"]
        self.events = document["plan"]["events"]
        #: By kind and the op that an event is bound to, as listed.
        self.bound: dict[tuple[str, int | None], list[Any]] = defaultdict(list)
        for event in self.events:
            self.bound[event["kind"], event[BOUND_TO[event["kind"]]]].append(event)
        self.ever_back = {event["tensor"] for event in self.events if event["kind"] == "swap_in"}
        place = {op: index for index, op in enumerate(self.order)} | {None: -1}
        last_copy: dict[int, tuple[int, int, bool]] = {}
        for index, event in enumerate(self.events):
            if event["kind"] in ("swap_out", "swap_in"):
                when = (place[event["trigger_op"]], index, event["kind"] == "swap_out")
                last_copy[event["tensor"]] = max(last_copy.get(event["tensor"], (-2, 0, False)), when)
        on_host = {t for t, (_, _, out) in last_copy.items() if out and self.tensors[t]["persistent"]}
        self.on_device = {
            t for t, tensor in self.tensors.items() if tensor["persistent"] and t not in on_host
        }
        self.host_copy = set(on_host)
        self.arriving: set[int] = set()
        self.departing: set[int] = set()
        self.departed_but_used: set[int] = set()
        self.used_by_running_op: set[int] = set()
        self.now = 0
        self.held = sum(self.tensors[t]["nbytes"] for t in self.on_device)
        self.seen = Replay(peak_nbytes=self.held)
        self.ended_at: dict[tuple[int, int | None], int] = {}
        self.ends: list[tuple[int, int, Any]] = []
        self.counter = 0
        #: What the next op is longer by, for copies that have begun.
        self.lost_ns = 0

    def run(self, iterations: int) -> Replay:
        work = [step for number in range(iterations) for step in self._steps(number)]
        # The channels know only as many copies as iterations were asked for.
        self.queues: dict[str, deque[_Copy]] = {"out": deque(), "in": deque()}
        self.triggered_by: dict[tuple[int, int | None], list[_Copy]] = defaultdict(list)
        #: Copies still in a queue whose trigger has ended, by number.
        self.triggered: list[_Copy] = []
        numbers = itertools.count()
        for number in range(iterations):
            for event in self.events:
                if event["kind"] in ("swap_out", "swap_in"):
                    out = event["kind"] == "swap_out"
                    trigger = (number, event["trigger_op"])
                    copy = _Copy(next(numbers), out, event["tensor"], trigger, event["delta_ns"])
                    self.queues["out" if out or not self.device["duplex"] else "in"].append(copy)
                    self.triggered_by[trigger].append(copy)
        self.busy = {"out": False, "in": False}
        #: Triggered swap-outs of tensors whose value the host has.
        self.copyless: list[_Copy] = []
        self.running = False
        cursor = 0
        while cursor < len(work) or self.running:
            while self.ends and self.ends[0][0] <= self.now:
                heapq.heappop(self.ends)[2]()
            progress = self._start_copies()
            if not self.running and cursor < len(work) and work[cursor]():
                cursor += 1
                progress = True
            if progress:
                continue
            if not self.ends:
                raise Refused(f"stuck at step {cursor} of {len(work)}")
            self.now = self.ends[0][0]
        return self.seen

    def _steps(self, number: int):
        def begin() -> bool:
            self.seen.starts_ns.append(self.now)
            self._trigger(number, None)
            return True

        yield begin
        for op in self.order:
            waits = [e["tensor"] for e in self.bound["wait", op]]
            yield lambda waits=waits: not any(self._is_leaving(t) for t in waits)
            for event in self.bound["recompute", op]:
                before: set[int] = set()
                yield lambda before=before: before.update(self._there()) or True
                for again in event["ops"]:
                    yield lambda again=again: self._start_op(number, again, again=True)
                yield lambda event=event, before=before: self._drop_by_products(event, before)
            yield lambda op=op: self._start_op(number, op, again=False)
        waits = [e["tensor"] for e in self.bound["wait", None]]
        yield lambda waits=waits: not any(self._is_leaving(t) for t in waits)

    def _is_leaving(self, tensor: int) -> bool:
        waiting = (c for c in (*self.triggered, *self.copyless) if c.out and c.tensor == tensor)
        return tensor in self.departing or any(waiting)

    def _is_due(self, tensor: int) -> bool:
        return tensor in self.arriving or any(not c.out and c.tensor == tensor for c in self.triggered)

    def _there(self) -> set[int]:
        """Return what is on the device, or whose swap-in is triggered."""
        return self.on_device | {tensor for tensor in self.ever_back if self._is_due(tensor)}

    def _hold(self, change: int) -> None:
        self.held += change
        self.seen.peak_nbytes = max(self.seen.peak_nbytes, self.held)

    def _later(self, duration: int, action) -> None:
        self.counter += 1
        heapq.heappush(self.ends, (self.now + duration, self.counter, action))

    def _wake_delayed(self, number: int, op: int | None) -> None:
        for event in (*self.bound["swap_out", op], *self.bound["swap_in", op]):
            if event["delta_ns"]:
                self._later(event["delta_ns"], lambda: None)

    def _start_op(self, number: int, op_id: int, *, again: bool) -> bool:
        op = self.ops[op_id]
        for tensor in op["reads"]:
            if tensor in self.ever_back and self._is_due(tensor):
                return False
            if tensor not in self.on_device:
                if any(c.tensor == tensor and not c.out for q in self.queues.values() for c in q):
                    return False
                raise Refused(f"op {op_id} reads tensor {tensor}, which is not there")
        if any(self._is_due(tensor) for tensor in op["writes"] if tensor in self.ever_back):
            return False
        fresh = [
            t
            for t in op["writes"]
            if t not in self.on_device and not (again and self.tensors[t]["persistent"])
        ]
        for tensor in op["writes"]:
            if again and tensor not in fresh:
                continue
            self.on_device.add(tensor)
            self.host_copy.discard(tensor)
        self._hold(sum(self.tensors[t]["nbytes"] for t in fresh) + op["workspace_nbytes"])
        self.running = True
        self.used_by_running_op = {*op["reads"], *op["writes"]}
        end_ns = self.now + op["latency_ns"] + self.lost_ns
        self.seen.runs.append((number, op_id, self.now, end_ns, again))
        self._later(end_ns - self.now, lambda: self._end_op(number, op_id, again))
        self.lost_ns = 0
        return True

    def _end_op(self, number: int, op_id: int, again: bool) -> None:
        self.running = False
        self.used_by_running_op = set()
        self._hold(-self.ops[op_id]["workspace_nbytes"])
        for tensor in self.departed_but_used:
            self._gone(tensor)
        self.departed_but_used = set()
        if again:
            return
        for event in self.bound["release", op_id]:
            if event["tensor"] not in self.on_device or event["tensor"] in self.departing:
                raise Refused(f"tensor {event['tensor']} is released but is not there")
            self._gone(event["tensor"])
            self.host_copy.discard(event["tensor"])
        self._trigger(number, op_id)

    def _trigger(self, number: int, op_id: int | None) -> None:
        self.ended_at[number, op_id] = self.now
        found = self.triggered_by.get((number, op_id))
        if found:
            self.triggered = sorted([*self.triggered, *found], key=lambda copy: copy.number)
        self._wake_delayed(number, op_id)

    def _leave(self, tensor: int) -> None:
        if tensor in self.used_by_running_op:
            self.departed_but_used.add(tensor)
        else:
            self._gone(tensor)

    def _gone(self, tensor: int) -> None:
        self.on_device.discard(tensor)
        self._hold(-self.tensors[tensor]["nbytes"])

    def _drop_by_products(self, event, before: set[int]) -> bool:
        made = {t for op in event["ops"] for t in self.ops[op]["writes"] if not self.tensors[t]["persistent"]}
        for tensor in made - before - {event["tensor"]}:
            self._gone(tensor)
        if event["tensor"] not in self.on_device:
            raise Refused(f"the recomputation does not restore tensor {event['tensor']}")
        return True

    def _start_copies(self) -> bool:
        progress = self._start_free()
        for name, queue in self.queues.items():
            while queue and not self.busy[name] and self._can_start(queue[0]):
                self.triggered.remove(queue[0])
                self._start_copy(name, queue.popleft())
                progress = True
        return progress

    def _start_free(self) -> bool:
        """Let go what the host has: it is not copied, so it neither waits for the channel nor holds it up."""
        for copy in [copy for copy in self.triggered if copy.out and copy.tensor in self.host_copy]:
            self.triggered.remove(copy)
            self.queues["out"].remove(copy)
            self.copyless.append(copy)
        ready = [copy for copy in self.copyless if self._can_start(copy)]
        for copy in ready:
            self.copyless.remove(copy)
            self.seen.copies.append((copy.trigger[0], copy.tensor, True, self.now, self.now))
            self._leave(copy.tensor)
        return bool(ready)

    def _can_start(self, copy: _Copy) -> bool:
        triggered = self.ended_at.get(copy.trigger)
        if triggered is None or triggered + copy.delta_ns > self.now:
            return False
        if copy.out:
            return copy.tensor in self.on_device and copy.tensor not in self.arriving
        return copy.tensor in self.host_copy and copy.tensor not in self.on_device

    def _start_copy(self, name: str, copy: _Copy) -> None:
        nbytes = self.tensors[copy.tensor]["nbytes"]
        if copy.out:
            rate = self.device["d2h_bytes_per_s"]
            self.departing.add(copy.tensor)
        else:
            rate = self.device["h2d_bytes_per_s"]
            self.arriving.add(copy.tensor)
            self.on_device.add(copy.tensor)
            self._hold(nbytes)
        duration = (nbytes * 10**9 + rate - 1) // rate
        self.busy[name] = True
        self.seen.copies.append((copy.trigger[0], copy.tensor, copy.out, self.now, self.now + duration))
        cost_rate = self.device.get("copies_cost_bytes_per_s")
        if duration and cost_rate:
            self.lost_ns += nbytes * 10**9 // cost_rate

        def end() -> None:
            self.busy[name] = False
            if copy.out:
                self.departing.discard(copy.tensor)
                self.host_copy.add(copy.tensor)
                self._leave(copy.tensor)
            else:
                self.arriving.discard(copy.tensor)

        if duration:
            self._later(duration, end)
        else:
            end()
