"""When each op and copy of a plan runs, and what the device holds meanwhile.

`simulation.py` finds it out.  It serves planning, predictions and the simulated device.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.plan import SWAPS, DeviceSpec, Plan
from tensile_db.scheduler.simulated import Course
from tensile_db.scheduler.simulation import Simulation


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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timeline:
    """The last simulated iteration; times are ns from its start."""

    #: Op, begin, end, whether it is a recomputation, of each run; shape (runs, 4), in order.
    runs: NDArray[np.int64]
    #: Tensor, whether to the host, begin, end, of each copy; shape (copies, 4), ascending by begin.
    moves: NDArray[np.int64]
    #: Time, device bytes from then on; shape (steps, 2), ascending by time.
    steps: NDArray[np.int64]
    #: The most device bytes held at any time of any iteration.
    peak_nbytes: int
    #: From one iteration's start to the next one's, once it repeats.
    period_ns: int
    #: The first iteration's time; when it begins, no copy is on its way.
    first_ns: int

    @property
    def ops(self) -> tuple[OpSpan, ...]:
        """The runs of ops, in order."""
        return tuple(
            OpSpan(op=OpId(op), begin_ns=begin_ns, end_ns=end_ns, recompute=bool(again))
            for op, begin_ns, end_ns, again in self.runs.tolist()
        )

    @property
    def copies(self) -> tuple[CopySpan, ...]:
        """The copies, ascending by begin."""
        return tuple(
            CopySpan(tensor=TensorId(tensor), to_host=bool(out), begin_ns=begin_ns, end_ns=end_ns)
            for tensor, out, begin_ns, end_ns in self.moves.tolist()
        )

    @property
    def swap_outs(self) -> tuple[CopySpan, ...]:
        """The copies to the host that copy something: of some tensors it has a valid copy already."""
        return tuple(copy for copy in self.copies if copy.to_host and copy.end_ns > copy.begin_ns)

    @property
    def memory(self) -> tuple[tuple[int, int], ...]:
        """(time, device bytes from then on), ascending by time."""
        return tuple((at_ns, nbytes) for at_ns, nbytes in self.steps.tolist())

    @property
    def ops_ns(self) -> int:
        """What the ops take, recomputation included; ns."""
        return int((self.runs[:, 2] - self.runs[:, 1]).sum())

    def op_times_ns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return begins and ends of the ops, recomputation left aside; shape (ops,), in order."""
        first = self.runs[self.runs[:, 3] == 0]
        return first[:, 1], first[:, 2]

    def begins_with_recomputation_ns(self) -> NDArray[np.int64]:
        """Return when each op begins, or the first recomputation before it; shape (ops,), in order."""
        last = np.flatnonzero(self.runs[:, 3] == 0)
        first: NDArray[np.int64] = np.concatenate(([0], last[:-1] + 1))
        return self.runs[first][:, 1]

    def waits_ns(self, least_ns: int) -> list[tuple[int, int]]:
        """Return the positions of ops that wait for longer than this, or of which a recomputation does.

        With each, the time until which it waits.
        """
        waited_ns = self.runs[1:, 1] - self.runs[:-1, 2]
        positions = np.cumsum(self.runs[:-1, 3] == 0)
        waits = (waited_ns > least_ns).nonzero()[0]
        return list(zip(positions[waits].tolist(), self.runs[1:, 1][waits].tolist(), strict=True))

    def idle_before_ns(self) -> NDArray[np.int64]:
        """Return how long before each op nothing but recomputation runs; shape (ops,), in order."""
        begins_ns, ends_ns = self.op_times_ns()
        idle_ns = begins_ns.copy()
        idle_ns[1:] -= ends_ns[:-1]
        return idle_ns


def simulate(graph: StepGraph, latencies_ns: Sequence[int], plan: Plan, device: DeviceSpec) -> Timeline:
    """Run the plan on the timeline until its period repeats.

    latencies_ns: by op id, shape (ops,).  Raises InvalidPlan where an op reads a tensor that never arrives.
    """
    return _timeline(Simulation(graph, latencies_ns, plan, device).run())


def settle(graph: StepGraph, latencies_ns: Sequence[int], plan: Plan, device: DeviceSpec) -> Plan:
    """Return the plan with swap-ins delayed until the waits between trigger and next op are over.

    A lowered program hands a copy to the device over only after those waits (`lowering.py`).  In a plan the
    copy has but a trigger and a delay, so the delay must say when they are over; else a replay of the events
    would hold both tensors at once.  Raises InvalidPlan as `simulate` does.
    """
    return simulate_settled(graph, latencies_ns, plan, device)[0]


def simulate_settled(
    graph: StepGraph,
    latencies_ns: Sequence[int],
    plan: Plan,
    device: DeviceSpec,
    *,
    first_within_ns: int | None = None,
) -> tuple[Plan, Timeline]:
    """Return the settled plan, and the timeline on which it settled.

    `simulate` of the settled plan may differ a little where delays were still growing in the last iteration.
    first_within_ns: give up, with TooSlow, where the first iteration is seen to take longer, as
    `Simulation.run` does.
    """
    for known in _steady:
        if known.is_of(graph, latencies_ns, plan, device):
            return plan, known.timeline
    course = Simulation(graph, latencies_ns, plan, device, after_waits=True).run(
        first_within_ns=first_within_ns
    )
    settled, timeline = with_delays(plan, course.delays_ns), _timeline(course)
    if course.steady:
        # Delays did not grow from one iteration to the next, and would not if it were settled again.
        steady = _Steady(
            graph=graph, latencies_ns=latencies_ns, plan=settled, device=device, timeline=timeline
        )
        _steady.append(steady)
    return settled, timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Steady:
    """A settled plan's timeline: who makes a plan simulates it, and so does who says what it does."""

    graph: StepGraph
    latencies_ns: Sequence[int]
    plan: Plan
    device: DeviceSpec
    timeline: Timeline

    def is_of(self, graph: StepGraph, latencies_ns: Sequence[int], plan: Plan, device: DeviceSpec) -> bool:
        """Whether it is of this very graph and equals of the rest.

        The device's memory, the policy's name and how the graph was rewritten make no difference.
        """
        # What differs most often comes first, and what takes long to compare last.
        return (
            self.graph is graph
            and self.plan.events == plan.events
            and self.plan.order == plan.order
            and (self.latencies_ns is latencies_ns or self.latencies_ns == latencies_ns)
            and (
                self.device is device
                or replace(device, memory_nbytes=self.device.memory_nbytes) == self.device
            )
        )


#: Those of the jobs of one device: planned again, most keep plan and latencies.
_steady: deque[_Steady] = deque(maxlen=64)


def fastest(graph: StepGraph, latencies_ns: Sequence[int], plans: Sequence[Plan], device: DeviceSpec) -> Plan:
    """Return the plan that takes the least time an iteration once it is settled; of equals the first."""
    if len(plans) == 1:
        return plans[0]

    def settled_ns(plan: Plan) -> int:
        # As it is told and run: before, copies need not await what they are to, and take less time.
        return simulate(graph, latencies_ns, settle(graph, latencies_ns, plan, device), device).period_ns

    return min(plans, key=settled_ns)


def with_delays(plan: Plan, delays_ns: Sequence[int]) -> Plan:
    """Return the plan with these delays of its copies, as listed; the plan itself where they are its own."""
    given, events, changed = iter(delays_ns), list(plan.events), False
    for index, event in enumerate(plan.events):
        if isinstance(event, SWAPS):
            delay_ns = next(given)
            if event.delta_ns != delay_ns:
                kind = type(event)
                events[index] = kind(tensor=event.tensor, trigger_op=event.trigger_op, delta_ns=delay_ns)
                changed = True
    assert next(given, None) is None, "a delay for each copy"
    return replace(plan, events=tuple(events)) if changed else plan


def _timeline(course: Course) -> Timeline:
    begin_ns, end_ns = course.begin_ns, course.end_ns
    runs = np.array(course.runs, dtype=np.int64).reshape(-1, 4)
    moves = np.array(course.moves, dtype=np.int64).reshape(-1, 4)
    moves = moves[np.argsort(moves[:, 2], kind="stable")]
    runs[:, 1:3] -= begin_ns
    moves[:, 2:] -= begin_ns
    at_ns, held_nbytes = course.held()
    first, last = (int(at_ns.searchsorted(time_ns, side="right")) for time_ns in (begin_ns, end_ns))
    steps = np.stack((at_ns[first - 1 : last] - begin_ns, held_nbytes[first - 1 : last]), axis=1)
    steps[0, 0] = 0
    return Timeline(
        runs=runs,
        moves=moves,
        steps=steps,
        peak_nbytes=max(0, int(held_nbytes.max())),
        period_ns=end_ns - begin_ns,
        first_ns=course.first_ns,
    )
