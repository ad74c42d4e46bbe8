"""What the product needs around it: a PostgreSQL and Python packages, this machine's own or brought along.

Brought along is what bench.gpu.pack wrote elsewhere, build/postgres/packed.tar.xz.  What this machine has
itself comes first.  Needs the standard library alone.
"""

import json
import os
import platform
import sys
import tarfile
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tensile_db.errors import NotInstalled
from tensile_db.local_postgres import find_postgres

PACKED = Path(__file__).parents[2] / "build" / "postgres" / "packed.tar.xz"
PACKING_LIST = "packed.json"

#: Top modules of what pack_packages.WANTED names.
MODULES = ("alembic", "optuna", "psycopg", "rich", "sqlalchemy", "typer")


def provide(folder: Path, packed: Path = PACKED) -> dict[str, Any]:
    """See to it that this process, and those it starts, find packages and a PostgreSQL; return where from.

    folder: where to unpack what was brought along, if it is needed; others than this user must reach it.
    Raises NotInstalled saying what is missing, and why it was not brought.
    """
    missing = [name for name in MODULES if find_spec(name) is None]
    try:
        programs = find_postgres()
    except NotInstalled as lacking:
        unpacked = unpack(folder, packed, lacking.message)
        # What local_postgres.py looks at first.
        os.environ["PG_CONFIG"] = str(unpacked / packing_list(unpacked)["bindir"] / "pg_config")
        programs = find_postgres()
    if missing:
        unpacked = unpack(folder, packed, f"no {', '.join(missing)}")
        _add_packages(unpacked)
    return {
        "postgres": programs.version,
        "postgres_from": "brought along"
        if programs.bindir.is_relative_to(folder.resolve())
        else str(programs.bindir),
        "packages_from": f"brought along: {', '.join(missing)}" if missing else "installed",
    }


def unpack(folder: Path, packed: Path = PACKED, lacking: str = "") -> Path:
    """Unpack what was brought along into a folder, once; return where it lies.

    lacking: why it is needed.  Raises NotInstalled where nothing was brought along, or for another machine.
    """
    unpacked = folder / "brought"
    if not unpacked.exists():
        if not packed.exists():
            raise NotInstalled(
                f"{lacking}; and nothing was brought along",
                hint="`make pack-postgres` on a Debian or Ubuntu packs it: bring build/postgres along.",
            )
        with tarfile.open(packed) as archive:
            # Python before 3.11.4 has no filters.
            archive.extraction_filter = getattr(tarfile, "tar_filter", lambda member, _path: member)
            archive.extractall(unpacked)  # noqa: S202  # `make pack-postgres` wrote it
        machine = packing_list(unpacked)["machine"]
        if machine != platform.machine():
            raise NotInstalled(
                f"{lacking}; what was brought along is for {machine}, not {platform.machine()}"
            )
    return unpacked


def packing_list(unpacked: Path) -> dict[str, Any]:
    """Return what was packed."""
    found: dict[str, Any] = json.loads((unpacked / PACKING_LIST).read_text())
    return found


def _add_packages(unpacked: Path) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    packages = unpacked / "packages" / version
    if not packages.exists():
        known = ", ".join(packing_list(unpacked)["packages"])
        raise NotInstalled(
            f"packages were brought along for Python {known}, and this is {version}",
            hint=f'make pack-postgres PACK="--python {version}"',
        )
    sys.path.insert(0, str(packages))
    invalidate_caches()
    # For the worker, a process of its own.
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(packages) if before is None else f"{packages}{os.pathsep}{before}"
