"""docs/results.md, made from the results that are committed and the words around them.

The words are a Markdown file in which a line `<!-- results: NAME -->` stands for the tables and pictures of a
results file, and for the command that made it.
"""

import re
from pathlib import Path

from tensile_db.bench.reports.provenance import told
from tensile_db.bench.reports.results import TABLES, read

_PLACE = re.compile(r"^<!-- results: (\w+) -->$", re.MULTILINE)


def page(template: str, results: Path, pictures: str) -> str:
    """Return the page for a folder of results; pictures: that folder as seen from the page."""
    return _PLACE.sub(lambda place: _shown(place[1], results, pictures), template)


def places(template: str) -> list[str]:
    """Return the names of the results files that the page shows, in its order."""
    return _PLACE.findall(template)


def _shown(name: str, results: Path, pictures: str) -> str:
    path = results / f"{name}.json"
    if not path.exists():
        return "Not run yet."
    document = read(path)
    drawn = (f"{name}.svg", f"{name}_frontier.svg", f"{name}_memory.svg")
    return "\n\n".join(
        [
            TABLES[document["bench"]](document),
            *(f"![{each}]({pictures}/{each})" for each in drawn if (results / each).exists()),
            told(document),
        ]
    )
