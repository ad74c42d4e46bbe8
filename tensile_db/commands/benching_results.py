"""`tensile-db bench join` and `docs`: results put together, and the page that is made of them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tensile_db.commands import bench_options as options
from tensile_db.commands.bench_options import RESULTS


def join(
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", help="Results of some of it, as JSON.")],
    into: Annotated[Path, typer.Option(metavar="FILE", help="The results that they are put into, as JSON.")],
) -> None:
    """Put the figures of other runs, of some networks or policies, into results in the place of theirs."""
    from tensile_db.bench.reports.joining import joined
    from tensile_db.bench.reports.results import read, write

    document = read(into)
    for part in parts:
        document = joined(document, read(part))
    files = write(document, into.parent, into.stem)
    options.tell(f"written to {', '.join(str(path) for path in files)}")


def docs(
    results: Annotated[Path, typer.Option(metavar="DIR", help="Where results lie.")] = RESULTS,
    words: Annotated[Path, typer.Option(metavar="FILE", help="What stands around them.")] = Path(
        "bench/page.md"
    ),
    output: Annotated[Path, typer.Option(metavar="FILE", help="The page.")] = Path("docs/results.md"),
) -> None:
    """Write the page of results from the results files."""
    from tensile_db.bench.reports.results_page import page

    output.write_text(page(words.read_text(), results, os.path.relpath(results, output.parent)))
    options.tell(f"{output} written")
