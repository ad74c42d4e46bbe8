"""`tensile-db plan`: plans a training job for a device without a database, a table or training."""

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensile_db.commands.budgets import EagersShare, open_within, parse_budget, with_share
from tensile_db.commands.console import err, out, step
from tensile_db.commands.files import check_writable
from tensile_db.commands.own_policies import use_policy
from tensile_db.commands.plan_results import draw, print_json, show, write_trace
from tensile_db.commands.predicting import predict
from tensile_db.commands.private import DEFAULT_FOLDER, Folder
from tensile_db.errors import InvalidRequest, format_nbytes
from tensile_db.udf.options import OPTIONS
from tensile_db.worker.devices.limits import require_threads

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
            help="A timm model, an alias, mlp, what a package offers, a benchmark's: bert, gpt, transformer,"
            " gcn, unet; or your own, module:function.",
        ),
    ],
    batch_size: Annotated[int, typer.Option(min=1, help="Rows an iteration.")] = 32,
    image_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Pixels a side; default: what the network was designed for. A package's network takes images"
            " where it is given.",
        ),
    ] = None,
    features: Annotated[
        int | None, typer.Option(min=1, help="Columns of a table, for mlp or a package's; default: 16.")
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
        str,
        typer.Option(
            help="auto, tensile, vanilla, or a peer: see docs/planner.md; or your own, module:function."
        ),
    ] = "auto",
    device: Annotated[
        str,
        typer.Option(
            help="cpu, cuda:0, sim:NAME (a6000, h200, p100, rtx2080ti, titanrtx), or sim:FILE.json."
        ),
    ] = "cpu",
    budget: Annotated[
        str | None,
        typer.Option(
            help="Device memory to keep within: a size, e.g. 2GiB or 700M, which are binary as 700MiB is,"
            " while 700MB is decimal; or a share of eager's peak, e.g. 50%; default: all of it."
        ),
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
    freeze_backbone: Annotated[
        bool, typer.Option("--freeze-backbone", help="Train only the layer that gives the outputs.")
    ] = False,
    bound: Annotated[
        bool, typer.Option("--bound", help="Also solve for the least time within the budget; takes seconds.")
    ] = False,
    at_once: Annotated[
        bool,
        typer.Option(
            "--at-once",
            help="Plan quickly, as a worker does while a job waits for its first iteration, and split ops"
            " only where they must be; without this the plan may be faster.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole plan as one JSON object.")] = False,
) -> None:
    """Capture a network's training step and plan its memory.  Nothing is trained, no memory is taken.

    Times are what `tensile-db calibrate` has learned of this machine's devices, where it has; else a
    roofline estimate.
    """
    for file, suffixes in ((trace, ()), (plot, _PICTURES)):
        check_writable(file, suffixes)
    if trace is not None and trace == plot:
        raise InvalidRequest(f"{trace} cannot be both trace and picture", hint="Name two files.")
    _check_known("precision", precision)
    _check_known("memory_format", memory_format)
    use_policy(policy)
    meant = None if budget is None else parse_budget(budget)
    spec = open_within(device, meant, threads)
    with step(f"capturing a training step of {architecture}"):
        # Within the step: PyTorch's import is a part of what takes so long.
        from tensile_db.bench.machines import kernel_threads
        from tensile_db.capture.kernel_threads import captured_for
        from tensile_db.commands.capturing import capture

        # What the network prints is no result.
        with captured_for(kernel_threads(device)), redirect_stdout(sys.stderr):
            captured = capture(
                architecture,
                batch_size=batch_size,
                image_size=image_size,
                features=features,
                classes=classes,
                optimizer=optimizer,
                precision=precision,
                memory_format=memory_format,
                freeze=freeze_backbone,
                device=device,
            )
    graph = captured.graph
    if isinstance(meant, EagersShare):
        spec = with_share(spec, meant, graph)
    latencies = predict(captured, spec, folder=folder, dsn=dsn, threads=threads)
    planned = _plan_alone(graph, latencies.latencies_ns, policy, spec, at_once=at_once)
    if bound:
        planned = _with_lower_bound(planned, graph, latencies.latencies_ns, spec)
    title = f"{architecture}, batch {batch_size}, {optimizer}: {policy} on {spec.name}"
    if trace is not None:
        from tensile_db.scheduler.rewriting import planned_graph

        write_trace(trace, planned_graph(graph, planned.plan), planned.timeline, title)
    if plot is not None:
        draw(plot, planned, graph, latencies.latencies_ns, spec, title, with_budget=budget is not None)
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
            "freeze_backbone": freeze_backbone,
        }
        print_json(planned, graph, latencies.latencies_ns, spec, captured_from)
    else:
        # A plan that splits ops has no solved bound.
        show(planned, graph, spec, is_solved=bound and not planned.plan.splits)
        if not device.startswith("sim:"):
            out.print(f"{latencies.learned_count} of {len(graph.ops)} latencies learned, the others roofline")


def _check_known(option: str, value: str) -> None:
    """Raise InvalidRequest where an option, which is SQL's option of that name, has a wrong value."""
    if wanted := OPTIONS[option](value):
        raise InvalidRequest(f'there is no {option.replace("_", " ")} "{value}"', hint=f"It is {wanted}.")


def _plan_alone(
    graph: "StepGraph", latencies_ns: "Sequence[int]", policy: str, spec: "DeviceSpec", *, at_once: bool
) -> "JobPlan":
    title = f"planning {len(graph.ops)} ops over {len(graph.tensors)} tensors"
    slow = "still planning: where memory is short, that may take a minute or two"
    if ":" in policy:
        slow = f"still planning by {policy}"
    elif not at_once:
        slow += "; --at-once is quick"
    with step(title, slow=slow):
        from tensile_db.scheduler.clocks import check_clock
        from tensile_db.scheduler.joint import plan_jobs
        from tensile_db.scheduler.request import JobRequest

        check_clock(graph, latencies_ns, spec)
        request = JobRequest(
            job_id=1,
            graph=graph,
            latencies_ns=latencies_ns,
            policy=policy,
            at_once=at_once,
            # To look for others takes longer than all else.
            splits_by_need=at_once,
        )
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
