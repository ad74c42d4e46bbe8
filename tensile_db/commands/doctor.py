"""`tensile-db doctor`: what is installed, running and reachable, and what to do about what is not."""

import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.text import Text

from tensile_db.commands.background import BackgroundWorker
from tensile_db.commands.console import out
from tensile_db.commands.private import DEFAULT_FOLDER, Folder
from tensile_db.errors import TensileError

MISSING = 3

_PACKAGES = ("torch", "timm", "psycopg", "sqlalchemy", "alembic", "numpy", "pillow", "matplotlib")
#: Where NVIDIA's driver is, one of these is, in containers, too.
_DRIVER_FILES = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
_STYLES = {"ok": "green", "warning": "yellow", "problem": "red"}


class Finding(NamedTuple):
    """One thing that was looked at; the columns are those of the SQL function tensile_doctor()."""

    check: str
    #: ok, warning or problem.
    status: str
    found: str
    hint: str | None = None


def doctor(
    folder: Folder = DEFAULT_FOLDER,
    dsn: Annotated[
        str | None, typer.Option(help="Look at this database instead of the private cluster's.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what is installed, running, reachable and mismatched.  Exit status 3 where there is a problem."""
    findings = [*_machine(), *(_private(folder) if dsn is None else _database(dsn))]
    if as_json:
        out.print_json(json.dumps([finding._asdict() for finding in findings]))
    else:
        for finding in findings:
            _show(finding)
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(MISSING)


def _show(finding: Finding) -> None:
    line = Text(f"{finding.status:8}", style=_STYLES[finding.status]) + f" {finding.check:14} {finding.found}"
    out.print(line, soft_wrap=True)
    if finding.hint:
        out.print(Text(f"{'':24}{finding.hint}", style="dim"), soft_wrap=True)


def _machine() -> Iterator[Finding]:
    yield Finding("python", "ok", platform.python_version())
    for package in _PACKAGES:
        try:
            yield Finding(package, "ok", version(package))
        except PackageNotFoundError:
            yield Finding(package, "problem", "not installed", "pip install -r requirements.lock")
    from tensile_db.local_postgres import find_postgres

    try:
        programs = find_postgres()
        yield Finding("postgresql", "ok", f"{programs.version} with plpython3u in {programs.bindir}")
    except TensileError as error:
        # A server elsewhere does not need one here.
        yield Finding("postgresql", "warning", error.message, error.hint)
    yield _graphics_card()


def _graphics_card() -> Finding:
    # The driver's own files tell without importing torch, which takes seconds.
    if not any(Path(path).exists() for path in _DRIVER_FILES):
        return Finding("gpu", "ok", "none; the cpu device is used")
    from tensile_db.worker.devices.cuda.opening import model_name, require

    try:
        require("cuda:0")
    except TensileError as error:
        return Finding("gpu", "warning", error.message, error.hint)
    return Finding("gpu", "ok", f"{model_name(0)}; a worker takes it by --device cuda:0")


def _private(folder: Path) -> Iterator[Finding]:
    from tensile_db.local import LocalCluster

    cluster, pid = LocalCluster(folder), BackgroundWorker(folder).pid()
    try:
        running = cluster.is_running()
    except TensileError as error:
        yield Finding("cluster", "problem", error.message, error.hint)
        return
    if not running:
        yield Finding("cluster", "problem", f"not running in {cluster.folder}", "tensile-db up")
        return
    yield Finding("cluster", "ok", f"running in {cluster.home}")
    if pid is None:
        yield Finding("process", "problem", "the cluster's worker is not running", "tensile-db up")
    else:
        yield Finding("process", "ok", f"the cluster's worker is process {pid}")
    from tensile_db.local import DEMO_USER

    yield from _database(cluster.dsn(user=DEMO_USER))


def _database(dsn: str) -> Iterator[Finding]:
    import psycopg

    try:
        with psycopg.connect(dsn, connect_timeout=10) as connection:
            yield from map(Finding._make, connection.execute("SELECT * FROM tensile_doctor()"))
    except psycopg.errors.UndefinedFunction:
        yield Finding("database", "problem", "tensile_db is not in it", "tensile-db install DSN")
    except psycopg.Error as error:
        yield Finding("database", "problem", str(error).strip(), "Is the connection string right?")
