"""Fetches the Python packages that the product needs beyond what a machine with PyTorch and timm has.

As wheels for a Python of another version than this one, at the versions that this environment has, laid out
as they would be installed: compiled modules for one version stay apart from those for another.
"""

import platform
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

#: What the product imports to install its catalog, to run a worker and to ask a server.
WANTED = ("alembic", "optuna", "psycopg[binary]", "rich", "sqlalchemy", "typer")
#: What is there: `torch` with all that it needs, and what timm needs of its own.
THERE = ("torch", "numpy", "pillow")
THERE_ALONE = frozenset(
    {"huggingface-hub", "packaging", "pyyaml", "safetensors", "timm", "torchvision", "tqdm"}
)

#: Every glibc that PyTorch's wheels run on.
_PLATFORMS = ("manylinux_2_28_{0}", "manylinux_2_17_{0}", "manylinux2014_{0}")


def lay_out(version: str, folder: Path) -> list[str]:
    """Put the packages for a Python, e.g. 3.12, below folder/version; return what they are, pinned.

    Raises CalledProcessError where pip finds no wheel.
    """
    pins = [f"{name}=={distribution(name).version}" for name in sorted(needed())]
    with tempfile.TemporaryDirectory(prefix="tensile-wheels-") as wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--implementation", "cp"]
        command += ["--python-version", version, "--abi", f"cp{version.replace('.', '')}", "--abi", "abi3"]
        command += ["--abi", "none", *(option for each in _platforms() for option in ("--platform", each))]
        subprocess.run([*command, *pins], check=True)
        for wheel in sorted(Path(wheels).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder / version)
    return pins


def needed() -> frozenset[str]:
    """Return the names of the packages that are wanted, with all that they need and is not there."""
    there = _closure(THERE) | THERE_ALONE
    return _closure(WANTED) - there


def _platforms() -> list[str]:
    return [each.format(platform.machine()) for each in _PLATFORMS]


def _closure(wanted: Iterable[str]) -> frozenset[str]:
    """Return these packages, as names that pip compares, and what they need in this environment."""
    found: set[str] = set()
    left = [Requirement(each) for each in wanted]
    while left:
        requirement = left.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        try:
            needs = distribution(name).requires or []
        except PackageNotFoundError:
            continue  # another platform's, or an old Python's
        extras = requirement.extras or {""}
        for need in map(Requirement, needs):
            applies = need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in extras)
            if applies and (name not in found or requirement.extras):
                left.append(need)
        found.add(name)
    return frozenset(found)
