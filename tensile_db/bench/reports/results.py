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

#: Of the documents' form; a change of meaning is a new number.
FORMAT = 1

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
    """Write a document in every form; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    data, text = folder / f"{name}.json", folder / f"{name}.md"
    data.write_text(json.dumps({"format": FORMAT} | document, indent=1) + "\n")
    drawn = PICTURES[document["bench"]](document, folder, name) if document["bench"] in PICTURES else []
    text.write_text(page(document, [path.name for path in drawn]))
    return [data, text, *drawn]


def read(path: Path) -> dict[str, Any]:
    """Return a document."""
    document: dict[str, Any] = json.loads(path.read_text())
    assert document["format"] == FORMAT, f"{path} has format {document['format']}"
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
