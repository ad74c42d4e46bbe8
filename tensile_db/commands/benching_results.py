"""`tensile-db bench join` and `docs`: results put together, and the page that is made of them."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tensile_db.commands import bench_options as options
from tensile_db.commands.bench_options import RESULTS
from tensile_db.commands.files import writing
from tensile_db.errors import InvalidRequest


def join(
    parts: Annotated[list[Path], typer.Argument(metavar="PART...", help="Results of some of it, as JSON.")],
    into: Annotated[Path, typer.Option(metavar="FILE", help="The results that they are put into, as JSON.")],
) -> None:
    """Put the figures of other runs, of some networks or policies, into results in the place of theirs."""
    from tensile_db.bench.reports.joining import joined
    from tensile_db.bench.reports.results import read, write

    if any(part.exists() and part.samefile(into) for part in parts if into.exists()):
        raise InvalidRequest(f"{into} would be put into itself", hint="Name the results of another run.")
    document = read(into)
    for part in parts:
        document = joined(document, read(part))
    with writing(into.parent):
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
    from tensile_db.bench.reports.results_page import page, places

    with writing(output):
        if output.is_dir():
            raise InvalidRequest(f"{output} is a folder", hint="Name the page's file with --output.")
        # Too long a name is told of here.
        output.exists()
    if not output.parent.is_dir():
        raise InvalidRequest(
            f"there is no folder {output.parent}", hint="Make it first, or name another --output."
        )
    template = _words(words)
    if not places(template):
        raise InvalidRequest(
            f"{words} has no place for results", hint="Put lines like <!-- results: single_a6000 --> into it."
        )
    # Else a folder's name that is mistyped would make a page of nothing.
    if not any((results / f"{name}.json").exists() for name in places(template)):
        raise InvalidRequest(
            f"{results} has none of the results that {words} shows",
            hint=f"Name the folder of the results with --results, e.g. {RESULTS}.",
        )
    made = page(template, results, os.path.relpath(results, output.parent))
    with writing(output):
        output.write_text(made)
    options.tell(f"{output} written")


def _words(path: Path) -> str:
    """Return what stands around the results; raise InvalidRequest."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or error if isinstance(error, OSError) else "it is not text"
        raise InvalidRequest(
            f"cannot read {path}: {reason}", hint="Name a Markdown file with --words, e.g. bench/page.md."
        ) from error
