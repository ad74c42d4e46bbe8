"""What a plan says, laid out by op and by copy, so that its simulation looks nothing up twice.

What a graph or an order alone decides is worked out once for all their plans.
"""

from collections import defaultdict
from dataclasses import dataclass

from tensile_db.graph import OpId, StepGraph, TensorId
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.plan import DeviceSpec, Plan, Recompute, Release, SwapOut, Wait


@dataclass(slots=True, kw_only=True)
class Again:
    """A recomputation, and what of its results goes with its last op unless it was there before."""

    ops: tuple[OpId, ...]
    results: list[TensorId]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLists:
    """A graph's tensors in lists by tensor id: one number of a list is read sooner than one of an array."""

    nbytes: list[int]
    persistent: list[bool]
    persistent_ids: tuple[TensorId, ...]
    #: The ops that read or write each.
    touched_by: list[list[OpId]]


@once_for_each
def tensor_lists_of(graph: StepGraph) -> TensorLists:
    """Return what a graph says of its tensors."""
    touched_by: list[list[OpId]] = [[] for _ in graph.tensors]
    for op in graph.ops:
        for tensor in {*op.reads, *op.writes}:
            touched_by[tensor].append(op.id)
    return TensorLists(
        nbytes=[tensor.nbytes for tensor in graph.tensors],
        persistent=[tensor.persistent for tensor in graph.tensors],
        persistent_ids=tuple(tensor.id for tensor in graph.tensors if tensor.persistent),
        touched_by=touched_by,
    )


@once_for_each
def op_after(order: tuple[OpId, ...]) -> dict[OpId | None, OpId]:
    """Return the op after each op of an order, and after the iteration's start; none is after the last."""
    return dict(zip((None, *order), order, strict=False))


class LaidOut:
    """A plan's events by the ops they are bound to, those of one op as listed, and its copies by number."""

    def __init__(self, graph: StepGraph, plan: Plan, device: DeviceSpec) -> None:
        tensors = tensor_lists_of(graph)
        self.releases: dict[OpId, list[TensorId]] = defaultdict(list)
        self.waits: dict[OpId | None, list[TensorId]] = defaultdict(list)
        self.recomputes: dict[OpId, list[Again]] = defaultdict(list)
        #: Numbers of copies.
        self.triggered: dict[OpId | None, list[int]] = defaultdict(list)
        #: By number: tensor, whether to the host, how long it takes.
        self.copies: list[tuple[TensorId, bool, int]] = []
        #: By number, how long after its trigger it may begin.
        self.delays_ns: list[int] = []
        #: The ops with tensors that are ever copied.
        self.ops_of_copied: set[OpId] = set()
        outs: list[int] = []
        ins: list[int] = []
        for event in plan.events:
            # Releases first, for most plans have most of them; `match` would take twice the time.
            if isinstance(event, Release):
                self.releases[event.after_op].append(event.tensor)
            elif isinstance(event, Wait):
                self.waits[event.before_op].append(event.tensor)
            elif isinstance(event, Recompute):
                self.recomputes[event.before_op].append(_again(graph, event))
            else:
                out, number = isinstance(event, SwapOut), len(self.copies)
                (outs if out else ins).append(number)
                rate = device.d2h_bytes_per_s if out else device.h2d_bytes_per_s
                self.triggered[event.trigger_op].append(number)
                self.copies.append((event.tensor, out, copy_ns(tensors.nbytes[event.tensor], rate)))
                self.delays_ns.append(event.delta_ns)
                self.ops_of_copied.update(tensors.touched_by[event.tensor])
        #: Of each channel, the numbers of its copies, ascending.
        self.channels = [outs, ins] if device.duplex else [list(range(len(self.copies)))]


def _again(graph: StepGraph, event: Recompute) -> Again:
    made = {tensor for op in event.ops for tensor in graph.ops[op].writes} - {event.tensor}
    return Again(
        ops=event.ops, results=sorted(tensor for tensor in made if not graph.tensors[tensor].persistent)
    )
