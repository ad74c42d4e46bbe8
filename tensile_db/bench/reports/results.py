"""Results files: a document as JSON, its tables as Markdown, its pictures as SVG, under one name."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tensile_db.bench import ablations, bounds, exact
from tensile_db.bench.queueing import pictures as queueing_pictures
from tensile_db.bench.queueing import report as queueing_report
from tensile_db.bench.reports import batch, capacity, phases, plan_time, plots, sharing, single
from tensile_db.bench.reports.provenance import told
from tensile_db.errors import InvalidRequest

#: Of the documents' form; a change of meaning is a new number.
FORMAT = 1
#: What every document says, beside its format and benchmark.
_SAID = frozenset({"command", "at", "machine", "versions", "device"})

#: By benchmark: the tables.
TABLES: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "ablations": ablations.markdown,
    "batch": batch.markdown,
    "bounds": bounds.markdown,
    "capacity": capacity.markdown,
    "exact": exact.markdown,
    "first-iteration": phases.first_iteration,
    "mixed": sharing.mixed,
    "phases": phases.phases,
    "plan-time": plan_time.markdown,
    "scale": sharing.scale,
    "search": queueing_report.search,
    "serving": queueing_report.serving,
    "sharing": queueing_report.markdown,
    "single": single.markdown,
}

#: By benchmark: the pictures, written into a folder under a stem.
PICTURES: Mapping[str, Callable[[dict[str, Any], Path, str], list[Path]]] = {
    "batch": plots.draw_batch,
    "mixed": plots.draw_mixed,
    "plan-time": plots.draw_plan_time,
    "scale": plots.draw_scale,
    "sharing": queueing_pictures.draw_completions,
    "single": plots.draw_single,
}


def write(document: dict[str, Any], folder: Path, name: str) -> list[Path]:
    """Write a document in every form; return the files.

    The data, which others are made from, are written last: what cannot be told takes the place of nothing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, text = folder / f"{name}.json", folder / f"{name}.md"
    content = json.dumps({"format": FORMAT} | document, indent=1) + "\n"
    drawn = PICTURES[document["bench"]](document, folder, name) if document["bench"] in PICTURES else []
    text.write_text(page(document, [path.name for path in drawn]))
    data.write_text(content)
    return [data, text, *drawn]


def read(path: Path) -> dict[str, Any]:
    """Return a document; raise InvalidRequest where the file has none, or one in another format."""
    hint = "Name a JSON file that a benchmark has written, e.g. bench/results/single_a6000.json."
    try:
        document: object = json.loads(path.read_text())
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror or error}", hint=hint) from error
    # Bytes that are no text, and text that is no JSON.
    except ValueError as error:
        raise InvalidRequest(f"{path} is not JSON: {error}", hint=hint) from error
    if not isinstance(document, dict) or "format" not in document:
        raise InvalidRequest(f"{path} has no results", hint=hint)
    if document["format"] != FORMAT:
        raise InvalidRequest(
            f"{path} has results in format {document['format']}, and this version reads format {FORMAT}",
            hint="Run the benchmark again, or use the version that wrote them.",
        )
    # A list, not the mapping: what is no benchmark's name may not be hashable.
    if document.get("bench") not in list(TABLES) or not document.keys() >= _SAID:
        raise InvalidRequest(f"{path} has no results of tensile-db bench", hint=hint)
    return document


def page(document: dict[str, Any], pictures: list[str]) -> str:
    """Return a document's tables and pictures, under what made them."""
    versions = ", ".join(f"{name} {number}" for name, number in document["versions"].items())
    parts = [
        f"# {document['bench']} on {document['device']['name']}",
        f"{told(document)} {document['machine']['processor']}, {versions}.",
        TABLES[document["bench"]](document),
        *(f"![{name}]({name})" for name in pictures),
    ]
    return "\n\n".join(parts) + "\n"
