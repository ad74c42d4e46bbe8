"""What a policy returns: an order of ops and the events around them.

Each event's docstring says what it does; `plan_json.py` writes and reads plans as JSON.
Times are ns; a trigger of None is the iteration's start.
"""

from dataclasses import dataclass, field

from tensile_db.graph import Axis, OpId, TensorId


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """All that a planner knows of a device."""

    name: str
    memory_nbytes: int
    d2h_bytes_per_s: int
    h2d_bytes_per_s: int
    #: Both directions at once; else one channel serves both.
    duplex: bool
    #: Sustained rate of arithmetic, for predictions before anything was measured.
    flops_per_s: int
    #: Sustained rate of the device's own memory.
    memory_bytes_per_s: int
    #: Fixed cost of starting an op.
    op_overhead_ns: int
    #: Jobs whose ops it runs at once at full speed; where one job keeps it busy, 1.
    concurrency: int = 1
    #: Where what computes makes the copies, too: ops lose a second for so many bytes copied; else 0.
    copies_cost_bytes_per_s: int = 0
    #: Whether jobs' iterations may be taken down and replayed, which holds more memory than a plan's peak.
    replays: bool = False
    #: Whether what is taken down has its tensors where they are wanted; else where the allocator puts them.
    steers: bool = False

    @property
    def copies_cost_ops(self) -> bool:
        """Whether copies take time of what computes: the cpu device's are made by the cores."""
        return self.copies_cost_bytes_per_s > 0

    def ops_lose_ns(self, nbytes: int) -> int:
        """Return what a copy takes of the ops' time."""
        rate = self.copies_cost_bytes_per_s
        return nbytes * 1_000_000_000 // rate if rate else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapOut:
    """Copy to the host `delta_ns` after the trigger op's end, then free."""

    tensor: TensorId
    trigger_op: OpId | None
    delta_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapIn:
    """Copy to the device `delta_ns` after the trigger op's end."""

    tensor: TensorId
    trigger_op: OpId | None
    delta_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Run `ops` again just before `before_op`, to restore `tensor`."""

    tensor: TensorId
    before_op: OpId
    ops: tuple[OpId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """`before_op`, and what is recomputed before it, starts only when the tensor's swap-out has ended.

    None: the iteration's end does.
    """

    tensor: TensorId
    before_op: OpId | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Free the tensor when `after_op` has ended."""

    tensor: TensorId
    after_op: OpId


Event = SwapOut | SwapIn | Recompute | Wait | Release


#: The kinds that copy, for `isinstance` in loops: a union would be made anew each time.
SWAPS = (SwapOut, SwapIn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Ops of a plan's graph, its tensors packed, that are run in parts (`splitting/split_graph.py`)."""

    axis: Axis
    parts: int
    #: Ascending; they can be split along the axis, and have one extent.
    ops: tuple[OpId, ...]
    #: What other splits use, too, is kept in blocks and is never whole (`splitting/storages.py`).
    blocks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewriting:
    """What is done to a captured graph before it is planned."""

    #: Tensors that are kept in fewer bytes once no op takes them whole, ascending
    #: (`packing/packed_graph.py`).
    packed: tuple[TensorId, ...] = ()
    #: Of the graph that comes of that.
    splits: tuple[Split, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One iteration of one job; the copies of one channel run in the order listed."""

    policy: str
    order: tuple[OpId, ...]
    events: tuple[Event, ...]
    #: As of a Rewriting: order and events are of the graph that comes of it.
    packed: tuple[TensorId, ...] = ()
    splits: tuple[Split, ...] = ()
    #: Made at once, while others waited: there may be a better one.  Says nothing of what is done.
    quick: bool = field(default=False, compare=False)
    #: It, or what it was made again from, was made in haste (`JobRequest.in_haste`): small tensors stay.
    in_haste: bool = field(default=False, compare=False)

    @property
    def rewriting(self) -> Rewriting:
        """What is done to the captured graph first."""
        return Rewriting(packed=self.packed, splits=self.splits)


def swaps_by_trigger(plan: Plan) -> list[tuple[int, SwapOut | SwapIn]]:
    """Return each copy of a plan with its place among the events, in the order of their triggers.

    In that order copies of one tensor in one direction are handed over.
    """
    place: dict[OpId | None, int] = {op: index for index, op in enumerate(plan.order)}
    place[None] = -1
    swaps = [(index, event) for index, event in enumerate(plan.events) if isinstance(event, SWAPS)]
    return sorted(swaps, key=lambda swap: place[swap[1].trigger_op])


def has_choices_of(plan: Plan, other: Plan) -> bool:
    """Return whether plans are the same but for the delays of copies."""
    return (
        plan.order == other.order
        and plan.packed == other.packed
        and plan.splits == other.splits
        and len(plan.events) == len(other.events)
        and all(
            one is two or one == two or _is_same_copy(one, two)
            for one, two in zip(plan.events, other.events, strict=True)
        )
    )


def _is_same_copy(one: Event, two: Event) -> bool:
    return (
        isinstance(one, SWAPS)
        and type(one) is type(two)
        and one.tensor == two.tensor
        and one.trigger_op == two.trigger_op
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the timeline says of a plan; sizes in bytes, times in ns."""

    vanilla_peak_nbytes: int
    peak_nbytes: int
    guaranteed_peak_nbytes: int
    vanilla_time_ns: int
    time_ns: int
    #: Of the captured graph: a plan that splits ops or packs tensors may hold less.
    lower_bound_peak_nbytes: int
    lower_bound_time_ns: int

    @property
    def msr(self) -> float:
        """Memory saving rate: (VMP - EMP) / VMP."""
        return (self.vanilla_peak_nbytes - self.peak_nbytes) / self.vanilla_peak_nbytes

    @property
    def eor(self) -> float:
        """Extra overhead rate: ETC / VTC."""
        return self.time_ns / self.vanilla_time_ns

    @property
    def cbr(self) -> float:
        """Cost-benefit rate: MSR / EOR."""
        return self.msr / self.eor
