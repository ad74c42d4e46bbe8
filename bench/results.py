"""What every results file says of itself: machine, versions, command, and when."""

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "timm", "numpy", "psycopg", "sqlalchemy")


def provenance(module: str) -> dict[str, Any]:
    """Return the machine, the versions and the command of this run."""
    return {
        "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in PACKAGES},
    }


def write(name: str, document: dict[str, Any]) -> Path:
    """Write `bench/results/NAME.json` and return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(document, indent=1) + "\n")
    return path


def table(head: list[str], rows: list[list[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def median_ratio(ours: list[int], theirs: list[int]) -> float:
    """Return the median over runs made in turns of ours over theirs."""
    return median(mine / other for mine, other in zip(ours, theirs, strict=True))


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else [])
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor()
