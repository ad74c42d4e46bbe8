"""`tensile-db plan`: plans a training job for a device without a database, a table or training."""

import json
import os
import platform
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensile_db.commands.console import err, out, step
from tensile_db.commands.files import writing
from tensile_db.commands.predicting import predict
from tensile_db.commands.private import DEFAULT_FOLDER, Folder
from tensile_db.commands.sizes import parse_nbytes
from tensile_db.errors import InvalidRequest, format_nbytes
from tensile_db.udf.options import OPTIONS
from tensile_db.worker.devices.limits import require_threads
from tensile_db.worker.devices.names import is_cuda

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensile_db.graph import StepGraph
    from tensile_db.scheduler.plan import DeviceSpec
    from tensile_db.scheduler.request import JobPlan

#: What a picture can be written as.
_PICTURES = (".png", ".svg", ".pdf")


def plan(
    architecture: Annotated[
        str,
        typer.Argument(
            metavar="ARCH",
            help="A timm model, an alias, mlp, or a benchmark's: bert, gpt, transformer, gcn, unet.",
        ),
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="Rows an iteration.")] = 32,
    image_size: Annotated[
        int | None, typer.Option(min=1, help="Pixels a side; default: what the network was designed for.")
    ] = None,
    features: Annotated[
        int | None, typer.Option(min=1, help="Columns of a table, for mlp; default: 16.")
    ] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Classes to tell apart; default: 1000.")] = None,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")] = "momentum",
    precision: Annotated[
        str, typer.Option(help="float32, tf32, or autocast's bfloat16 or float16.")
    ] = "float32",
    memory_format: Annotated[
        str, typer.Option(help="contiguous or channels_last, for convolutions.")
    ] = "contiguous",
    policy: Annotated[
        str, typer.Option(help="auto, tensile, vanilla, or a peer: see docs/planner.md.")
    ] = "auto",
    device: Annotated[
        str,
        typer.Option(
            help="cpu, cuda:0, sim:NAME (a6000, h200, p100, rtx2080ti, titanrtx), or sim:FILE.json."
        ),
    ] = "cpu",
    budget: Annotated[
        str | None, typer.Option(help="Device memory to keep within, e.g. 2GiB; default: all of it.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the iteration as a trace for ui.perfetto.dev or chrome://tracing."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the memory of the iteration: .png, .svg or .pdf."),
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    dsn: Annotated[
        str | None,
        typer.Option(
            help="Where `tensile-db calibrate` has kept what it learned; default: the private cluster, if it"
            " runs."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1, callback=require_threads, help="Threads that a job computes with on the cpu device."
        ),
    ] = None,
    *,
    bound: Annotated[
        bool, typer.Option("--bound", help="Also solve for the least time within the budget; takes seconds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole plan as one JSON object.")] = False,
) -> None:
    """Capture a network's training step and plan its memory.  Nothing is trained, no memory is taken.

    Times are what `tensile-db calibrate` has learned of this machine's devices, where it has; else a
    roofline estimate.
    """
    for file, suffixes in ((trace, ()), (plot, _PICTURES)):
        _check_writable(file, suffixes)
    if trace is not None and trace == plot:
        raise InvalidRequest(f"{trace} cannot be both trace and picture", hint="Name two files.")
    _check_known("precision", precision)
    _check_known("memory_format", memory_format)
    _check_policy(policy)
    spec = _device(device, None if budget is None else parse_nbytes(budget), threads)
    with step(f"capturing a training step of {architecture}"):
        # Within the step: PyTorch's import is a part of what takes so long.
        from tensile_db.commands.capturing import capture

        captured = capture(
            architecture,
            batch_size=batch_size,
            image_size=image_size,
            features=features,
            classes=classes,
            optimizer=optimizer,
            precision=precision,
            memory_format=memory_format,
            device=device,
        )
    graph = captured.graph
    latencies = predict(captured, spec, folder=folder, dsn=dsn, threads=threads)
    planned = _plan_alone(graph, latencies.latencies_ns, policy, spec)
    if bound:
        planned = _with_lower_bound(planned, graph, latencies.latencies_ns, spec)
    title = f"{architecture}, batch {batch_size}, {optimizer}: {policy} on {spec.name}"
    if trace is not None:
        _write_trace(trace, planned, graph, title)
    if plot is not None:
        _draw(plot, planned, graph, latencies.latencies_ns, spec, title, with_budget=budget is not None)
    if as_json:
        captured_from = {
            "architecture": architecture,
            "batch_size": batch_size,
            "image_size": image_size,
            "features": features,
            "classes": classes,
            "optimizer": optimizer,
            "precision": precision,
            "memory_format": memory_format,
        }
        _print_json(planned, graph, latencies.latencies_ns, spec, captured_from)
    else:
        _show(planned, graph, spec)
        if not device.startswith("sim:"):
            out.print(f"{latencies.learned_count} of {len(graph.ops)} latencies learned, the others roofline")


def _check_writable(file: Path | None, suffixes: tuple[str, ...]) -> None:
    """Raise InvalidRequest, before anything long is done, where a file cannot be written."""
    if file is None:
        return
    if suffixes and file.suffix.lower() not in suffixes:
        raise InvalidRequest(
            f'cannot draw a picture as "{file.name}"', hint=f"Name a file that ends in {', '.join(suffixes)}."
        )
    if not file.parent.is_dir():
        raise InvalidRequest(f"there is no folder {file.parent}", hint="Make it first, or name another.")
    with writing(file):
        # What a link points to, which may not be there.
        meant = Path(os.path.realpath(file))
        is_new = not meant.exists()
        # Whoever reads from a pipe would take this for its end.
        if is_new or meant.is_file() or meant.is_dir():
            meant.open("ab").close()
        if is_new:
            meant.unlink()


def _check_known(option: str, value: str) -> None:
    """Raise InvalidRequest where an option, which is SQL's option of that name, has a wrong value."""
    if wanted := OPTIONS[option](value):
        raise InvalidRequest(f'there is no {option.replace("_", " ")} "{value}"', hint=f"It is {wanted}.")


def _check_policy(name: str) -> None:
    from tensile_db.scheduler.policies import require_policy

    require_policy(name)


def _device(name: str, budget_nbytes: int | None, threads: int | None) -> "DeviceSpec":
    """Return the device with the budget as its memory.  Raises UnknownName, InvalidRequest, NoSuchDevice."""
    if name == "cpu" or is_cuda(name):
        with step("measuring the device"):
            from tensile_db.worker.config import WorkerConfig
            from tensile_db.worker.devices.opening import open_device

            config = WorkerConfig(dsn="", device=name, memory_nbytes=budget_nbytes, threads=threads)
            opened = open_device(config)
            opened.close()
        if name == "cpu":
            from tensile_db.worker.host import host_memory_nbytes

            _note_beyond("this machine", host_memory_nbytes(), budget_nbytes)
        return opened.spec
    from tensile_db.machine_files import find_machine

    spec = find_machine(name)
    _note_beyond(name, spec.memory_nbytes, budget_nbytes)
    return spec if budget_nbytes is None else replace(spec, memory_nbytes=budget_nbytes)


def _note_beyond(name: str, memory_nbytes: int, budget_nbytes: int | None) -> None:
    """Tell that a budget is more than there is: one may plan for what one does not have."""
    if budget_nbytes is not None and budget_nbytes > memory_nbytes:
        err.print(f"Note: {name} has no more than {format_nbytes(memory_nbytes)}.", soft_wrap=True)


def _plan_alone(
    graph: "StepGraph", latencies_ns: "Sequence[int]", policy: str, spec: "DeviceSpec"
) -> "JobPlan":
    title = f"planning {len(graph.ops)} ops over {len(graph.tensors)} tensors"
    with step(title, slow="still planning: where memory is short, that may take a minute or two"):
        from tensile_db.scheduler.joint import plan_jobs
        from tensile_db.scheduler.request import JobRequest

        request = JobRequest(job_id=1, graph=graph, latencies_ns=latencies_ns, policy=policy)
        (planned,) = plan_jobs([request], spec)
        return planned


def _with_lower_bound(
    planned: "JobPlan", graph: "StepGraph", latencies_ns: "Sequence[int]", spec: "DeviceSpec"
) -> "JobPlan":
    """Return the plan with the solved bound of its time, in place of what its ops alone take.

    The bound is one of whole ops: where a plan splits some, their time stays.
    """
    if planned.plan.splits:
        err.print("no bound is solved for: it would be one of whole ops, and this plan splits some")
        return planned
    with step(f"solving for the least time within {format_nbytes(spec.memory_nbytes)}"):
        from tensile_db.scheduler.bound.time_bound import lower_bound_time_ns

        bound_ns = lower_bound_time_ns(graph, latencies_ns, spec, spec.memory_nbytes)
    return replace(planned, prediction=replace(planned.prediction, lower_bound_time_ns=bound_ns))


def _write_trace(file: Path, planned: "JobPlan", graph: "StepGraph", title: str) -> None:
    from tensile_db.scheduler.rewriting import planned_graph
    from tensile_db.scheduler.seeing.trace import trace_of

    with writing(file):
        file.write_text(json.dumps(trace_of(planned_graph(graph, planned.plan), planned.timeline, title)))
    err.print(f"trace written to {file}", soft_wrap=True)


def _draw(
    file: Path,
    planned: "JobPlan",
    graph: "StepGraph",
    latencies_ns: "Sequence[int]",
    spec: "DeviceSpec",
    title: str,
    *,
    with_budget: bool,
) -> None:
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


def _print_json(
    planned: "JobPlan",
    graph: "StepGraph",
    latencies_ns: "Sequence[int]",
    spec: "DeviceSpec",
    captured_from: dict[str, object],
) -> None:
    """captured_from: the options that decide the graph."""
    from tensile_db.scheduler.plan_json import plan_to_json

    versions = {name: version(name) for name in ("tensile_db", "torch", "timm")}
    head = {"captured": captured_from, "versions": {"python": platform.python_version()} | versions}
    document = plan_to_json(graph, latencies_ns, spec, planned.plan, planned.prediction)
    # Not through rich: plans have megabytes.
    typer.echo(json.dumps(head | document))


def _show(planned: "JobPlan", graph: "StepGraph", spec: "DeviceSpec") -> None:
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
        _ms(predicted.vanilla_time_ns),
        _ms(predicted.time_ns),
        _ms(predicted.lower_bound_time_ns),
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


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"
