"""`tensile-db check`: says of a plan's JSON, whoever wrote it, whether it is valid and what it does."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensile_db.commands.console import err, out
from tensile_db.commands.files import check_writable
from tensile_db.commands.plan_results import write_trace
from tensile_db.errors import InvalidRequest, format_nbytes

if TYPE_CHECKING:
    from tensile_db.scheduler.checking import Checked
    from tensile_db.scheduler.plan_reading import ReadPlan

#: Plans have megabytes; more would fill the memory, as an endless pipe would.
_MOST_NBYTES = 128 * 2**20
_HINT = "Give a file that `tensile-db plan ... --json` has printed, or one like it."


def check(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A plan as `tensile-db plan --json` prints it; - reads it."),
    ],
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the iteration as a trace for ui.perfetto.dev or chrome://tracing."
        ),
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")] = False,
) -> None:
    """Check a plan that was edited by hand or made by another planner: docs/plan_format.md.

    Exit status 0: it loses nothing, and fits into its device's memory.
    """
    check_writable(trace, ())
    document = _load(file)
    if trace is not None and file != "-" and trace.resolve() == Path(file).resolve():
        raise InvalidRequest(f"{trace} cannot be both plan and trace", hint="Name two files.")
    from tensile_db.scheduler import checking
    from tensile_db.scheduler.plan_reading import read_plan

    read = read_plan(document)
    checked = checking.check(read)
    if trace is not None:
        title = f"{file}: {read.plan.policy} on {read.device.name}"
        write_trace(trace, read.graph, checked.timeline, title)
    memory_nbytes = read.device.memory_nbytes
    fits = checked.needed_nbytes <= memory_nbytes
    if as_json:
        figures = {"fits": fits, "memory_nbytes": memory_nbytes} | checked.figures
        typer.echo(json.dumps(figures | {"predicted": read.predicted or None}))
    else:
        _show(read, checked)
    if not fits:
        raise InvalidRequest(
            f"the plan holds up to {format_nbytes(checked.needed_nbytes, math.ceil)}, but its device has"
            f" {format_nbytes(memory_nbytes, math.floor)}",
            hint="device.memory_nbytes says so; another plan may do with less.",
        )


def _load(file: str) -> object:
    """Return what the file, or standard input, holds as JSON.  Raises InvalidRequest."""
    name = "standard input" if file == "-" else file
    if not file:
        raise InvalidRequest('"" names no file', hint=_HINT)
    try:
        if file != "-":
            with Path(file).open("rb") as opened:
                content = opened.read(_MOST_NBYTES + 1)
        # Python has none where it was closed.
        elif sys.stdin is None:
            raise InvalidRequest("standard input is closed", hint=_HINT)
        else:
            content = sys.stdin.buffer.read(_MOST_NBYTES + 1)
    # Of a path with a null byte.
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidRequest(f"cannot read {name}: {reason}", hint=_HINT) from error
    if len(content) > _MOST_NBYTES:
        raise InvalidRequest(f"{name} has more than {format_nbytes(_MOST_NBYTES)}: no plan", hint=_HINT)
    try:
        return json.loads(content)
    except ValueError as error:
        raise InvalidRequest(f"{name} is no JSON: {error}", hint=_HINT) from error
    except RecursionError:
        raise InvalidRequest(f"{name} is no plan: it is nested too deeply", hint=_HINT) from None


def _show(read: "ReadPlan", checked: "Checked") -> None:
    from rich.table import Table
    from rich.text import Text

    # Text, for whoever wrote the names may have put markup into them.
    table = Table("", "eager", "checked", "as told", title=Text(f"{read.plan.policy} on {read.device.name}"))
    found, told = checked.figures, read.predicted
    table.add_row("peak", _size(found, "vanilla_peak_nbytes"), *_both(_size, found, told, "peak_nbytes"))
    table.add_row("guaranteed peak", "", *_both(_size, found, told, "guaranteed_peak_nbytes"))
    table.add_row("iteration", _time(found, "vanilla_time_ns"), *_both(_time, found, told, "time_ns"))
    for name in ("msr", "eor", "cbr"):
        table.add_row(name.upper(), "", *_both(_rate, found, told, name))
    out.print(table)
    if checked.timeline.peak_nbytes > checked.guaranteed_peak_nbytes:
        err.print(
            "Note: the peak is above the guaranteed one, for some swap-in's delay does not sit out a wait"
            " before the next op, as a worker would.",
            soft_wrap=True,
        )
    if checked.needed_nbytes <= read.device.memory_nbytes:
        out.print(f"valid, and within the device's {format_nbytes(read.device.memory_nbytes)}")


def _both(
    form: Any, found: Mapping[str, float | None], told: Mapping[str, float], name: str
) -> tuple[str, str]:
    return form(found, name), form(told, name)


def _size(figures: Mapping[str, float | None], name: str) -> str:
    # To the byte, for it is compared.
    nbytes = figures.get(name)
    return "-" if nbytes is None else f"{int(nbytes):,} B"


def _time(figures: Mapping[str, float | None], name: str) -> str:
    ns = figures.get(name)
    return "-" if ns is None else f"{int(ns):,} ns"


def _rate(figures: Mapping[str, float | None], name: str) -> str:
    rate = figures.get(name)
    return "-" if rate is None else f"{rate:.3f}"
