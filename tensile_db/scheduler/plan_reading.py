"""Reads a plan's JSON that anybody may have written: by hand, or by another planner.

`plan_json.py` writes it, and reads back what it wrote itself.  Here nothing is taken for granted: what is
read is a graph, a device and a plan of which lowering, verification and simulation can say all else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, Tensor, TensorId
from tensile_db.scheduler.analysis.channels import copy_ns
from tensile_db.scheduler.clocks import MOST_NS
from tensile_db.scheduler.plan import (
    SWAPS,
    DeviceSpec,
    Event,
    Plan,
    Recompute,
    Release,
    SwapIn,
    SwapOut,
    Wait,
)
from tensile_db.scheduler.plan_json import FORMAT
from tensile_db.scheduler.untrusted_json import MOST, Json, invalid


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """What a document says."""

    #: As the plan runs it.
    graph: StepGraph
    #: By op id, ns; shape (ops,).
    latencies_ns: tuple[int, ...]
    device: DeviceSpec
    #: Without what was done to the captured graph before: the graph has it done already.
    plan: Plan
    #: Whether something was: then eager does not run this graph.
    is_rewritten: bool
    #: As of `predicted`, without what it leaves out.
    predicted: Mapping[str, float]


def read_plan(document: object) -> ReadPlan:
    """Return what a document says.  Raises InvalidRequest, which names the place of what is wrong."""
    root = Json(document)
    if (number := root["format"].whole()) != FORMAT:
        raise invalid(f"the document's format is {number}: this version reads {FORMAT}")
    graph, latencies_ns = graph_from_json(root["graph"])
    device = device_from_json(root["device"])
    schedule = root["plan"]
    plan = schedule_from_json(schedule, graph, latencies_ns, device)
    rewritings = [schedule.find("packed"), schedule.find("splits")]
    return ReadPlan(
        graph=graph,
        latencies_ns=latencies_ns,
        device=device,
        plan=plan,
        is_rewritten=any(list(done) for done in rewritings if done is not None),
        predicted=_predicted(root.find("predicted")),
    )


def schedule_from_json(data: Json, graph: StepGraph, latencies_ns: Sequence[int], device: DeviceSpec) -> Plan:
    """Return the plan, without what it does to the captured graph before; raise InvalidRequest.

    graph, latencies_ns: as the plan runs it; ns, by op id.
    """
    plan = Plan(
        policy=data["policy"].text(),
        order=_order(data["order"], len(graph.ops)),
        events=tuple(_event(event, graph) for event in data["events"]),
    )
    _check_times(graph, latencies_ns, plan, device)
    return plan


def graph_from_json(data: Json) -> tuple[StepGraph, tuple[int, ...]]:
    """Return the graph and its ops' latencies, by op id in ns; raise InvalidRequest.

    What only planning asks for is left neutral: types and shapes, arithmetic and traffic, ways to split.
    """
    tensors = tuple(_tensor(each, TensorId(place)) for place, each in enumerate(data["tensors"]))
    listed = list(data["ops"])
    ops = tuple(_op(each, OpId(place), len(tensors)) for place, each in enumerate(listed))
    if not ops:
        raise invalid("graph.ops is empty: an iteration runs at least one op")
    made = {tensor.id for tensor in tensors if tensor.persistent}
    for op in ops:
        if missing := [tensor for tensor in op.reads if tensor not in made]:
            raise invalid(
                f"graph.ops[{op.id}] reads tensor {missing[0]}, which is not persistent, and no op before it"
                " in the list writes it"
            )
        made.update(op.writes)
    held_nbytes = sum(tensor.nbytes for tensor in tensors) + max(op.workspace_nbytes for op in ops)
    if not 0 < held_nbytes <= MOST:
        raise invalid(f"the graph's tensors have {held_nbytes} bytes together, not 1 to 2^62")
    return StepGraph(tensors=tensors, ops=ops), tuple(each["latency_ns"].whole(least=1) for each in listed)


def device_from_json(data: Json) -> DeviceSpec:
    """Return the device; what only predictions of latencies ask for is left neutral.

    Raises InvalidRequest.
    """
    costly = data.find("copies_cost_bytes_per_s")
    return DeviceSpec(
        name=data["name"].text(),
        memory_nbytes=data["memory_nbytes"].whole(least=1),
        d2h_bytes_per_s=data["d2h_bytes_per_s"].whole(least=1),
        h2d_bytes_per_s=data["h2d_bytes_per_s"].whole(least=1),
        duplex=data["duplex"].flag(),
        flops_per_s=1,
        memory_bytes_per_s=1,
        op_overhead_ns=0,
        copies_cost_bytes_per_s=0 if costly is None else costly.whole(),
    )


def _tensor(data: Json, place: TensorId) -> Tensor:
    _check_id(data, place)
    return Tensor(
        id=place,
        nbytes=data["nbytes"].whole(),
        dtype="",
        shape=(),
        role=Role(data["role"].one_of(list(Role))),
        persistent=data["persistent"].flag(),
        name=data["name"].text(),
    )


def _op(data: Json, place: OpId, tensors: int) -> Op:
    _check_id(data, place)
    reads = _tensors(data["reads"], tensors)
    listed = data.find("unread")
    unread = () if listed is None else _tensors(listed, tensors)
    if strange := sorted(set(unread) - set(reads)):
        raise invalid(f"graph.ops[{place}].unread has tensor {strange[0]}, which is not among its reads")
    return Op(
        id=place,
        target=data["target"].text(),
        phase=Phase(data["phase"].one_of(list(Phase))),
        reads=reads,
        writes=_tensors(data["writes"], tensors),
        workspace_nbytes=data["workspace_nbytes"].whole(),
        flops=0,
        moved_nbytes=0,
        recomputable=data["recomputable"].flag(),
        unread=unread,
    )


def _check_id(data: Json, place: int) -> None:
    if (given := data["id"].whole()) != place:
        raise invalid(f"{data.place} has the id {given}: an id is the place in the list")


def _tensors(data: Json, tensors: int) -> tuple[TensorId, ...]:
    return tuple(TensorId(tensor) for tensor in sorted(data.places_in(tensors, "tensors")))


def _order(data: Json, ops: int) -> tuple[OpId, ...]:
    order = data.places_in(ops, "ops")
    if len(order) < ops:
        left_out = min(set(range(ops)) - set(order))
        raise invalid(f"plan.order has {len(order)} of the {ops} ops: op {left_out} is left out")
    return tuple(OpId(op) for op in order)


def _event(data: Json, graph: StepGraph) -> Event:
    kind = data["kind"].one_of(["swap_out", "swap_in", "recompute", "wait", "release"])
    tensor = TensorId(data["tensor"].place_in(len(graph.tensors), "tensors"))
    ops = len(graph.ops)
    match kind:
        case "swap_out" | "swap_in":
            swap = SwapOut if kind == "swap_out" else SwapIn
            trigger = data.nullable("trigger_op")
            return swap(
                tensor=tensor,
                trigger_op=None if trigger is None else OpId(trigger.place_in(ops, "ops")),
                delta_ns=data["delta_ns"].whole(),
            )
        case "wait":
            before = data.nullable("before_op")
            return Wait(
                tensor=tensor, before_op=None if before is None else OpId(before.place_in(ops, "ops"))
            )
        case "release":
            return Release(tensor=tensor, after_op=OpId(data["after_op"].place_in(ops, "ops")))
        case _:
            again = tuple(OpId(op.place_in(ops, "ops")) for op in data["ops"])
            # A second run makes no persistent tensor anew.
            if graph.tensors[tensor].persistent or not any(tensor in graph.ops[op].writes for op in again):
                raise invalid(f"{data.place} recomputes tensor {tensor}, which none of its ops makes again")
            before_op = OpId(data["before_op"].place_in(ops, "ops"))
            return Recompute(tensor=tensor, before_op=before_op, ops=again)


def _check_times(graph: StepGraph, latencies_ns: Sequence[int], plan: Plan, device: DeviceSpec) -> None:
    """Raise InvalidRequest where a simulation's times could be beyond 64 bits: each thing waits in turn."""
    again = chain.from_iterable(event.ops for event in plan.events if isinstance(event, Recompute))
    total_ns = sum(latencies_ns) + sum(latencies_ns[op] for op in again)
    slower = min(device.d2h_bytes_per_s, device.h2d_bytes_per_s)
    for event in plan.events:
        if isinstance(event, SWAPS):
            nbytes = graph.tensors[event.tensor].nbytes
            total_ns += event.delta_ns + copy_ns(nbytes, slower) + device.ops_lose_ns(nbytes)
    if total_ns > MOST_NS:
        raise invalid(f"all ops, copies and delays take {total_ns} ns together: no clock goes so far")


def _predicted(data: Json | None) -> dict[str, float]:
    if data is None:
        return {}
    wholes = ("peak_nbytes", "guaranteed_peak_nbytes", "time_ns")
    found = {name: value.whole() for name in wholes if (value := data.find(name)) is not None}
    # By these, others are divided.
    eagers = ("vanilla_peak_nbytes", "vanilla_time_ns")
    found |= {name: value.whole(least=1) for name in eagers if (value := data.find(name)) is not None}
    rates = ("msr", "eor", "cbr")
    return found | {name: value.number() for name in rates if (value := data.find(name)) is not None}
