"""What every results file says of itself: machine, versions, command, and when."""

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "timm", "numpy", "scipy")

#: Runs that a sentence names.
_MOST_TOLD = 2


def provenance(command: str, packages: tuple[str, ...] = _PACKAGES) -> dict[str, Any]:
    """Return the machine, the versions and the command of this run."""
    return {
        "command": command,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
    }


def origin(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a document says of the run that made it, as `provenance` gives it."""
    return {name: document[name] for name in ("command", "at", "machine", "versions")}


def told(document: Mapping[str, Any]) -> str:
    """Return the sentences that say which commands made a document, and when.

    Of many runs the first and the date of the last: the document itself names all of them.
    """
    command, _, again = document["command"].partition(";")
    first = f"Made by `{command}`, {document['at'][:10]}."
    later = [f"`{made['command']}`, {made['at'][:10]}" for made in document.get("later", ())]
    if not again and len(later) <= _MOST_TOLD:
        return f"{first} Partly replaced by: {'; '.join(later)}." if later else first
    last = max([document["at"], *(made["at"] for made in document.get("later", ()))])[:10]
    return f"{first} Partly replaced since, until {last}: its JSON names the commands."


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (cpuinfo.read_text().splitlines() if cpuinfo.exists() else [])
        if line.startswith("model name")
    ]
    return names[0] if names else platform.processor()
