"""What a job's plan would be, as rows like those of EXPLAIN: nothing is trained, no device memory is used."""

from collections.abc import Sequence
from typing import Any, assert_never

from tensile_db.errors import DoesNotFit, format_nbytes
from tensile_db.graph import StepGraph
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes, time_of_ops_ns
from tensile_db.scheduler.plan import DeviceSpec, Recompute
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.request import JobPlan
from tensile_db.scheduler.rewriting import planned_graph
from tensile_db.scheduler.seeing.top_tensors import top_tensors
from tensile_db.worker.mailbox import Explanation, FrontierPoint
from tensile_db.worker.planning.planning_process import Broken, Infeasible, Planned, planning_error

Row = dict[str, Any]

_TOP_TENSORS = 5


def explain(
    explanation: Explanation,
    graph: StepGraph,
    latencies_ns: Sequence[int],
    device: DeviceSpec,
    *,
    policy: str,
    batch_size: int,
    iterations: int,
    limit_nbytes: int,
) -> list[Row]:
    """Return rows of property, value, unit and detail; frontier and top_tensor have several.

    latencies_ns: by op id, what the plans were made from; batch_size: rows of an iteration; iterations: of
    all epochs; limit_nbytes: the most that the job may have.
    Raises TensileError where planning the job fails.
    """
    match explanation.alone:
        case Infeasible() as infeasible:
            rows = _of_unfit(infeasible, graph, latencies_ns, policy)
        case Broken() as broken:
            raise planning_error(broken.message, broken.hint)
        case Planned(plans=plans, planning_ns=planning_ns):
            rows = _of_plan(
                plans[-1], graph, latencies_ns, planned_graph(graph, plans[-1].plan), iterations=iterations
            )
            rows.append(_row("planning_time", planning_ns, "ns", "What making this plan took."))
            rows.append(_admission(explanation, device))
        case _:
            assert_never(explanation.alone)
    rows.append(_row("batch_size", batch_size, None, "Rows of an iteration: at most those to train on."))
    rows.append(_row("iterations", iterations, None, "Of all epochs."))
    rows.append(_row("memory_limit", limit_nbytes, "bytes", "The most that the job may have."))
    rows.append(_row("device_memory", device.memory_nbytes, "bytes", f"Of device {device.name}."))
    rows += [_of_point(point) for point in explanation.frontier]
    return rows + _of_tensors(graph, latencies_ns)


def _declined(plan: JobPlan, graph: StepGraph) -> str:
    as_eager = vanilla.plan_one(graph)
    return "yes" if (plan.plan.order, plan.plan.events) == (as_eager.order, as_eager.events) else "no"


def _of_unfit(
    infeasible: Infeasible, graph: StepGraph, latencies_ns: Sequence[int], policy: str
) -> list[Row]:
    """Return what can be said of a job that no plan makes fit."""
    refusal = DoesNotFit(
        needed_nbytes=infeasible.needed_nbytes, budget_nbytes=infeasible.budget_nbytes, hint=infeasible.hint
    )
    return [
        _row("fits", "no", None, f"{refusal.message}. {refusal.hint}"),
        _row("policy", policy, None, "It has no plan within that memory."),
        _row("needed_memory", infeasible.needed_nbytes, "bytes", "Less would not do."),
        _row("ops", len(graph.ops), None, "Of one iteration."),
        *_of_job(graph, latencies_ns),
    ]


def _of_job(graph: StepGraph, latencies_ns: Sequence[int]) -> list[Row]:
    """Return what is so by any plan."""
    return [
        _row("state", graph.state_nbytes, "bytes", "Parameters, buffers and optimizer state."),
        _row("vanilla_peak", vanilla.peak_nbytes(graph), "bytes", "What eager PyTorch would hold."),
        _row(
            "lower_bound_peak",
            lower_bound_peak_nbytes(graph),
            "bytes",
            "Of whole ops, nothing packed: no such plan needs less.",
        ),
        _row(
            "vanilla_time",
            time_of_ops_ns(latencies_ns),
            "ns",
            "An iteration of eager PyTorch, predicted.",
        ),
    ]


def _of_plan(
    plan: JobPlan, graph: StepGraph, latencies_ns: Sequence[int], in_parts: StepGraph, *, iterations: int
) -> list[Row]:
    said = plan.prediction
    swapped_out = plan.timeline.swap_outs
    swap_nbytes = sum(in_parts.tensors[copy.tensor].nbytes for copy in swapped_out)
    recomputed = sum(len(event.ops) for event in plan.plan.events if isinstance(event, Recompute))
    return [
        _row("fits", "yes", None, "By the plan below, alone on the device."),
        _row("policy", plan.plan.policy, None, "Who made the plan."),
        _row("declined", _declined(plan, graph), None, "Whether everything fits as eager PyTorch holds it."),
        _row("ops", len(in_parts.ops), None, "Of one iteration."),
        _row(
            "packed_tensors",
            len(plan.plan.packed),
            None,
            "Kept in fewer bytes once nothing takes them whole.",
        ),
        _row("split_ops", sum(len(split.ops) for split in plan.plan.splits), None, "Run in parts."),
        *_of_job(graph, latencies_ns),
        _row("planned_peak", said.peak_nbytes, "bytes", "What this plan holds."),
        _row("guaranteed_peak", said.guaranteed_peak_nbytes, "bytes", "The most, whatever the latencies."),
        _row("saved", round(said.msr, 4), None, "Share of the vanilla peak (MSR)."),
        _row("swap_outs", len(swapped_out), None, "An iteration."),
        _row("swapped", swap_nbytes, "bytes", "Copied to the host in an iteration."),
        _row("recomputed_ops", recomputed, None, "Run again in an iteration."),
        _row("planned_time", said.time_ns, "ns", "An iteration by this plan, predicted."),
        _row(
            "training_time",
            iterations * said.time_ns,
            "ns",
            "What all iterations take the device, alone on it; without reading, validations and checkpoints.",
        ),
        _row("lower_bound_time", said.lower_bound_time_ns, "ns", "No plan can be faster."),
        _row("overhead", round(said.eor, 4), None, "Planned time over vanilla time (EOR)."),
    ]


def _admission(explanation: Explanation, device: DeviceSpec) -> Row:
    match explanation.together:
        case None if explanation.must_wait:
            return _row(
                "admitted_now", "no", None, "It would wait for its turn: this worker runs one job at a time."
            )
        case None:
            return _row("admitted_now", "yes", None, "No other job is running.")
        case Planned(shares=shares):
            own, others = shares[-1], shares[:-1]
            beside = f"beside {len(others)} running job{'s' if len(others) > 1 else ''}"
            turns = sum(share.lane == own.lane for share in others)
            manner = f"taking turns with {turns} of them" if turns else "at the same time"
            detail = f"With {format_nbytes(own.budget_nbytes)}, {beside}, {manner}."
            return _row("admitted_now", "yes", None, detail)
        case Infeasible(needed_nbytes=needed_nbytes):
            return _row(
                "admitted_now",
                "no",
                None,
                f"It would wait: with the running jobs at least {format_nbytes(needed_nbytes)} are needed,"
                f" and there are {format_nbytes(device.memory_nbytes)}.",
            )
        case Broken(message=message):
            return _row(
                "admitted_now", "unknown", None, f"Planning it with the running jobs failed: {message}"
            )
        case _:
            assert_never(explanation.together)


def _of_point(point: FrontierPoint) -> Row:
    within = f"Within {format_nbytes(point.budget_nbytes)}"
    said = point.prediction
    if said is None:
        return _row("frontier", "none", None, f"{within} this policy has no plan.")
    share = point.budget_nbytes / said.vanilla_peak_nbytes
    detail = f"{within}, {share:.0%} of the vanilla peak: EOR {said.eor:.3f}, MSR {said.msr:.3f}."
    return _row("frontier", said.time_ns, "ns", detail)


def _of_tensors(graph: StepGraph, latencies_ns: Sequence[int]) -> list[Row]:
    """Return the tensors whose bytes times idle time are largest: what there is to swap or recompute."""
    rows = []
    for idle in top_tensors(graph, latencies_ns, _TOP_TENSORS):
        tensor, before = graph.tensors[idle.tensor], graph.ops[idle.before_op]
        detail = (
            f"{tensor.name} ({tensor.role}): idle for {idle.idle_ns / 1e6:.1f} ms between"
            f" {graph.ops[idle.after_op].target} (op {idle.after_op}) and {before.target} (op {before.id})."
        )
        rows.append(_row("top_tensor", tensor.nbytes, "bytes", detail))
    return rows


def _row(name: str, value: object, unit: str | None, detail: str) -> Row:
    return {"property": name, "value": str(value), "unit": unit, "detail": detail}
