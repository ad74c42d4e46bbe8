"""`tensile-db bench`: the papers' tables and figures, on machines one has or on simulated ones."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensile_db.commands.console import err, out

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensile_db.bench.captures import Captures

app = typer.Typer(no_args_is_help=True, help=__doc__)

_FIVE = "vgg16,inception_v3,inception_v4,resnet50,densenet121"

Device = Annotated[
    str,
    typer.Option(help="sim:NAME: a6000, h200, p100, rtx2080ti, titanrtx; where it makes sense also cpu."),
]
Networks = Annotated[str, typer.Option(help="Names of workloads, with commas between.")]
Policies = Annotated[str, typer.Option(help="Names of policies, with commas between; default: all.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Rows an iteration.")]
Optimizer = Annotated[str, typer.Option(help="sgd, momentum, adam or adamw.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where results are written.")]
Name = Annotated[str | None, typer.Option(help="Of the results' files; default: benchmark and device.")]
Cache = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Keep captured graphs there, for the next run.")
]

_OUT = Path("bench/results")


@app.command()
def single(
    device: Device = "sim:a6000",
    networks: Networks = _FIVE,
    policies: Policies = "",
    batch_size: BatchSize = 16,
    optimizer: Optimizer = "adam",
    out_dir: Out = _OUT,
    name: Name = None,
    cache: Cache = None,
    *,
    bound: Annotated[bool, typer.Option(help="Also solve for the lower bound on time.")] = True,
) -> None:
    """One job at a time: MSR, EOR and CBR of every policy over budgets, beside the lower bound."""
    from tensile_db.bench import single as bench
    from tensile_db.bench.machines import simulated

    document = bench.run(
        _captures(cache),
        simulated(device, "single"),
        networks=_split(networks),
        policies=_policies(policies),
        batch=batch_size,
        optimizer=optimizer,
        with_bound=bound,
        tell=_tell,
    )
    _write(document, out_dir, name)


def _captures(folder: Path | None) -> "Captures":
    from tensile_db.bench.captures import Captures

    return Captures(folder=folder)


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _policies(names: str) -> "Sequence[str]":
    """Return the policies asked for, all where none was; raise UnknownName."""
    from tensile_db.errors import UnknownName
    from tensile_db.scheduler.policies import POLICIES

    chosen = _split(names)
    for name in chosen:
        if name not in POLICIES:
            raise UnknownName("policy", name, POLICIES)
    return chosen or list(POLICIES)


def _tell(what: str) -> None:
    err.print(f"... {what}", soft_wrap=True)


def _write(document: dict[str, Any], folder: Path, name: str | None) -> None:
    from tensile_db.bench.provenance import provenance
    from tensile_db.bench.results import TABLES, write

    document = provenance(shlex.join(["tensile-db", *sys.argv[1:]])) | document
    machine = document["device"]["name"].removeprefix("sim:")
    files = write(document, folder, name or f"{document['bench'].replace('-', '_')}_{machine}")
    # Not through rich: tables are Markdown.
    typer.echo(TABLES[document["bench"]](document))
    out.print(f"written to {', '.join(str(path) for path in files)}", soft_wrap=True)
