"""What `tensile-db plan` makes of a plan: a trace, a picture, one JSON object, or a table."""

import json
import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tensile_db.commands.console import err, out
from tensile_db.commands.files import writing
from tensile_db.errors import format_nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensile_db.graph import StepGraph
    from tensile_db.scheduler.plan import DeviceSpec
    from tensile_db.scheduler.request import JobPlan
    from tensile_db.scheduler.timeline import Timeline


def write_trace(file: Path, graph: "StepGraph", timeline: "Timeline", title: str) -> None:
    """Write an iteration as a trace; graph: as the plan runs it."""
    from tensile_db.scheduler.seeing.trace import trace_of

    with writing(file):
        file.write_text(json.dumps(trace_of(graph, timeline, title)))
    err.print(f"trace written to {file}", soft_wrap=True)


def draw(
    file: Path,
    planned: "JobPlan",
    graph: "StepGraph",
    latencies_ns: "Sequence[int]",
    spec: "DeviceSpec",
    title: str,
    *,
    with_budget: bool,
) -> None:
    """Draw a plan's memory over an iteration."""
    from tensile_db.commands.memory_plot import draw_plan
    from tensile_db.scheduler.policies import vanilla
    from tensile_db.scheduler.rewriting import planned_graph
    from tensile_db.scheduler.timeline import simulate

    with writing(file):
        draw_plan(
            file,
            graph=planned_graph(graph, planned.plan),
            plan=planned.plan,
            timeline=planned.timeline,
            eager=simulate(graph, latencies_ns, vanilla.plan_one(graph), spec),
            budget_nbytes=spec.memory_nbytes if with_budget else None,
            title=title,
        )
    err.print(f"picture written to {file}", soft_wrap=True)


def print_json(
    planned: "JobPlan",
    graph: "StepGraph",
    latencies_ns: "Sequence[int]",
    spec: "DeviceSpec",
    captured_from: dict[str, object],
) -> None:
    """Print the whole plan as one object; captured_from: the options that decide the graph."""
    from tensile_db.scheduler.plan_json import plan_to_json

    versions = {name: version(name) for name in ("tensile_db", "torch", "timm")}
    head = {"captured": captured_from, "versions": {"python": platform.python_version()} | versions}
    document = plan_to_json(graph, latencies_ns, spec, planned.plan, planned.prediction, planned.timeline)
    # Not through rich: plans have megabytes.
    typer.echo(json.dumps(head | document))


def show(planned: "JobPlan", graph: "StepGraph", spec: "DeviceSpec", *, is_solved: bool) -> None:
    """Print what a plan is predicted to hold and to take, beside eager and the lower bounds.

    is_solved: whether the time's bound is that of the budget; else it is what the ops alone take.
    """
    from rich.table import Table

    from tensile_db.scheduler.plan import Recompute
    from tensile_db.scheduler.rewriting import planned_graph

    predicted, events = planned.prediction, planned.plan.events
    tensors = planned_graph(graph, planned.plan).tensors
    swapped = [tensors[copy.tensor].nbytes for copy in planned.timeline.swap_outs]
    recomputed = sum(len(event.ops) for event in events if isinstance(event, Recompute))
    table = Table("", "eager", "planned", "lower bound", title=f"{planned.plan.policy} on {spec.name}")
    table.add_row(
        "peak",
        format_nbytes(predicted.vanilla_peak_nbytes),
        format_nbytes(predicted.peak_nbytes),
        format_nbytes(predicted.lower_bound_peak_nbytes),
    )
    table.add_row(
        "iteration",
        format_ms(predicted.vanilla_time_ns),
        format_ms(predicted.time_ns),
        format_ms(predicted.lower_bound_time_ns) + ("" if is_solved else " (ops alone)"),
    )
    out.print(table)
    if predicted.peak_nbytes < predicted.lower_bound_peak_nbytes:
        out.print("the lower bound of the peak is of whole ops, nothing packed: this plan does with less")
    out.print(
        f"guaranteed peak {format_nbytes(planned.budget_nbytes)} of {format_nbytes(spec.memory_nbytes)}"
        f"   MSR {predicted.msr:.3f}   EOR {predicted.eor:.3f}   CBR {predicted.cbr:.3f}"
    )
    out.print(
        f"{len(swapped)} swap-outs of {format_nbytes(sum(swapped))}"
        f" and {recomputed} recomputed ops an iteration"
    )


def format_ms(ns: int) -> str:
    """Return a time for people, e.g. 15400000 -> '15.4 ms', 243211 -> '0.243 ms'."""
    return f"{ns / 1e6:.{1 if ns >= 10**7 else 3}f} ms"
