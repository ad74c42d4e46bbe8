"""A plan as one JSON object, for people, other tools and the tests' own replay."""

from collections.abc import Mapping, Sequence
from typing import Any, assert_never

from tensile_db.errors import InvalidRequest
from tensile_db.graph import Axis, OpId, StepGraph, TensorId
from tensile_db.scheduler.plan import (
    DeviceSpec,
    Event,
    Plan,
    Prediction,
    Recompute,
    Release,
    Split,
    SwapIn,
    SwapOut,
    Wait,
)
from tensile_db.scheduler.request import JobRequest
from tensile_db.scheduler.rewriting import as_rewritten
from tensile_db.scheduler.timeline import Timeline

FORMAT = 1


def plan_to_json(
    graph: StepGraph,
    latencies_ns: Sequence[int],
    device: DeviceSpec,
    plan: Plan,
    prediction: Prediction,
    timeline: Timeline,
) -> dict[str, Any]:
    """Return the object; replaying its events gives its predictions.

    graph, latencies_ns: as captured; what a plan packs and splits is packed and split in the object's graph.
    timeline: of the plan, on which the prediction is.
    """
    captured = JobRequest(job_id=0, graph=graph, latencies_ns=latencies_ns)
    planned = as_rewritten(captured, plan.rewriting, device)
    return {
        "format": FORMAT,
        "graph": _graph_to_json(planned.graph, planned.latencies_ns),
        "device": _device_to_json(device),
        "plan": schedule_to_json(plan),
        "predicted": _prediction_to_json(prediction),
        "timeline": _timeline_to_json(timeline),
    }


def event_to_json(event: Event) -> dict[str, Any]:
    """Return one event as JSON's own types."""
    match event:
        case SwapOut() | SwapIn():
            kind = "swap_out" if isinstance(event, SwapOut) else "swap_in"
            return {
                "kind": kind,
                "tensor": event.tensor,
                "trigger_op": event.trigger_op,
                "delta_ns": event.delta_ns,
            }
        case Recompute():
            return {
                "kind": "recompute",
                "tensor": event.tensor,
                "before_op": event.before_op,
                "ops": list(event.ops),
            }
        case Wait():
            return {"kind": "wait", "tensor": event.tensor, "before_op": event.before_op}
        case Release():
            return {"kind": "release", "tensor": event.tensor, "after_op": event.after_op}
        case _ as never:
            assert_never(never)


def event_from_json(data: Mapping[str, Any]) -> Event:
    """Return the event that `event_to_json` wrote.  Raises InvalidRequest for a kind that is none."""
    tensor = TensorId(data["tensor"])
    match data["kind"]:
        case "swap_out":
            return SwapOut(tensor=tensor, trigger_op=data["trigger_op"], delta_ns=data["delta_ns"])
        case "swap_in":
            return SwapIn(tensor=tensor, trigger_op=data["trigger_op"], delta_ns=data["delta_ns"])
        case "recompute":
            ops = tuple(OpId(op) for op in data["ops"])
            return Recompute(tensor=tensor, before_op=data["before_op"], ops=ops)
        case "wait":
            return Wait(tensor=tensor, before_op=data["before_op"])
        case "release":
            return Release(tensor=tensor, after_op=data["after_op"])
        case kind:
            raise InvalidRequest(f"unknown plan event {kind!r}")


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Return the plan of an object that `plan_to_json` wrote."""
    plan = data["plan"]
    return Plan(
        policy=plan["policy"],
        order=tuple(OpId(op) for op in plan["order"]),
        events=tuple(event_from_json(event) for event in plan["events"]),
        # Plans that were kept before tensors were packed have none.
        packed=tuple(TensorId(tensor) for tensor in plan.get("packed", ())),
        splits=tuple(
            Split(
                axis=Axis(split["axis"]),
                parts=split["parts"],
                ops=tuple(OpId(op) for op in split["ops"]),
                # Plans that were kept before there were blocks.
                blocks=split.get("blocks", False),
            )
            for split in plan.get("splits", ())
        ),
    )


def _graph_to_json(graph: StepGraph, latencies_ns: Sequence[int]) -> dict[str, Any]:
    return {
        "tensors": [
            {
                "id": t.id,
                "nbytes": t.nbytes,
                "role": str(t.role),
                "persistent": t.persistent,
                "name": t.name,
            }
            for t in graph.tensors
        ],
        "ops": [
            {
                "id": op.id,
                "target": op.target,
                "phase": str(op.phase),
                "reads": list(op.reads),
                "writes": list(op.writes),
                "workspace_nbytes": op.workspace_nbytes,
                "latency_ns": int(latencies_ns[op.id]),
                "recomputable": op.recomputable,
                # That must be there, but may have any value.
                **({"unread": list(op.unread)} if op.unread else {}),
            }
            for op in graph.ops
        ],
    }


def _device_to_json(device: DeviceSpec) -> dict[str, Any]:
    document = {
        "name": device.name,
        "memory_nbytes": device.memory_nbytes,
        "d2h_bytes_per_s": device.d2h_bytes_per_s,
        "h2d_bytes_per_s": device.h2d_bytes_per_s,
        "duplex": device.duplex,
    }
    if device.copies_cost_ops:
        document["copies_cost_bytes_per_s"] = device.copies_cost_bytes_per_s
    return document


def schedule_to_json(plan: Plan) -> dict[str, Any]:
    """Return what an object says of a plan itself."""
    return {
        "policy": plan.policy,
        "order": list(plan.order),
        "events": [event_to_json(event) for event in plan.events],
        # Of the captured graph's tensors, and of the ops of what comes of packing these: policies find the
        # object's graph by them, a replay needs none of it.
        "packed": list(plan.packed),
        "splits": [
            {
                "axis": str(split.axis),
                "parts": split.parts,
                "ops": list(split.ops),
                "blocks": split.blocks,
            }
            for split in plan.splits
        ],
    }


def _prediction_to_json(prediction: Prediction) -> dict[str, Any]:
    return {
        "vanilla_peak_nbytes": prediction.vanilla_peak_nbytes,
        "peak_nbytes": prediction.peak_nbytes,
        "guaranteed_peak_nbytes": prediction.guaranteed_peak_nbytes,
        "vanilla_time_ns": prediction.vanilla_time_ns,
        "time_ns": prediction.time_ns,
        "lower_bound_peak_nbytes": prediction.lower_bound_peak_nbytes,
        "lower_bound_time_ns": prediction.lower_bound_time_ns,
        "msr": prediction.msr,
        "eor": prediction.eor,
        "cbr": prediction.cbr,
    }


def _timeline_to_json(timeline: Timeline) -> dict[str, Any]:
    return {
        "period_ns": timeline.period_ns,
        "runs": [
            {"op": run.op, "begin_ns": run.begin_ns, "end_ns": run.end_ns, "recompute": run.recompute}
            for run in timeline.ops
        ],
        "copies": [
            {
                "tensor": copy.tensor,
                "to_host": copy.to_host,
                "begin_ns": copy.begin_ns,
                "end_ns": copy.end_ns,
            }
            for copy in timeline.copies
        ],
    }
