"""What every results file says of itself: machine, versions, command, and when."""

import json
import shlex
import sys
from pathlib import Path
from statistics import median
from typing import Any

from tensile_db.bench.reports.markdown import table
from tensile_db.bench.reports.provenance import provenance as provenance_of

__all__ = ["ON_CPU", "RESULTS", "median_ratio", "provenance", "table", "write"]

RESULTS = Path(__file__).parent / "results"
#: Of what runs on a machine's processor; each GPU has a folder of its own, and what is simulated lies above.
ON_CPU = RESULTS / "cpu"
PACKAGES = ("torch", "timm", "numpy", "psycopg", "sqlalchemy")


def provenance(module: str) -> dict[str, Any]:
    """Return the machine, the versions and the command of this run."""
    return provenance_of(shlex.join(["python", "-m", module, *sys.argv[1:]]), PACKAGES)


def write(name: str, document: dict[str, Any]) -> Path:
    """Write `bench/results/cpu/NAME.json` and return its path."""
    ON_CPU.mkdir(exist_ok=True)
    path = ON_CPU / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def median_ratio(ours: list[int], theirs: list[int]) -> float:
    """Return the median over runs made in turns of ours over theirs."""
    return median(mine / other for mine, other in zip(ours, theirs, strict=True))
