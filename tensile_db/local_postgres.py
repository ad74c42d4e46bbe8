"""Finds the programs of a PostgreSQL that has plpython3u.

Reads the file system and asks pg_config and `postgres --version`; starts no server.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensile_db.errors import NotInstalled

OLDEST_VERSION = 14

#: Where distributions keep the programs of each major version: Debian and Ubuntu, then the PGDG's RPMs.
_VERSIONED_FOLDERS = ("/usr/lib/postgresql", "/usr")
_VERSIONED_NAMES = ("[0-9]*/bin", "pgsql-[0-9]*/bin")

_INSTALL_HINT = (
    "On Debian or Ubuntu: apt-get install postgresql postgresql-plpython3-<version>; `make setup` does it."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresPrograms:
    """One installed PostgreSQL."""

    #: Major version, e.g. 15.
    version: int
    #: Folder of initdb, pg_ctl, postgres and psql.
    bindir: Path
    has_plpython: bool

    def program(self, name: str) -> str:
        """Return the path of one of its programs."""
        return str(self.bindir / name)


def find_postgres(version: int | None = None) -> PostgresPrograms:
    """Return the newest PostgreSQL with plpython3u, or the one of this major version.

    version: the one that an existing cluster was made with; no other can open it.
    Raises NotInstalled naming the package that is missing.
    """
    # Of two of a version the one that PG_CONFIG names, which comes first.
    found = sorted(dict.fromkeys(installed()), key=lambda programs: programs.version, reverse=True)
    if version is not None:
        found = [programs for programs in found if programs.version == version]
        if not found:
            raise NotInstalled(
                f"the cluster was made by PostgreSQL {version}, which is not installed any more",
                hint=f"Install PostgreSQL {version} again, or `tensile-db down --remove` the cluster.",
            )
    usable = [programs for programs in found if programs.version >= OLDEST_VERSION]
    if not usable:
        have = ", ".join(str(programs.version) for programs in found) or "none"
        raise NotInstalled(
            f"no PostgreSQL {OLDEST_VERSION} or newer is installed (found: {have})", hint=_INSTALL_HINT
        )
    for programs in usable:
        if programs.has_plpython:
            return programs
    newest = usable[0].version
    raise NotInstalled(
        f"PostgreSQL {newest} is installed, but its language plpython3u is not",
        hint=f"On Debian or Ubuntu: apt-get install postgresql-plpython3-{newest}.",
    )


def installed() -> Iterator[PostgresPrograms]:
    """Yield every PostgreSQL server on this machine; one may come twice."""
    for bindir in _candidate_folders():
        if (bindir / "initdb").exists() and (bindir / "postgres").exists():
            yield _describe(bindir)


def _candidate_folders() -> Iterator[Path]:
    # PG_CONFIG is how PGXS lets a user name one installation among several.
    named = os.environ.get("PG_CONFIG")
    if named:
        yield _folder_named_by(named)
    elif (pg_config := shutil.which("pg_config")) and (folder_name := _output(pg_config, "--bindir")):
        yield Path(folder_name).resolve()
    for folder in _VERSIONED_FOLDERS:
        for pattern in _VERSIONED_NAMES:
            for bindir in sorted(Path(folder).glob(pattern)):
                yield bindir.resolve()
    initdb = shutil.which("initdb")
    if initdb:
        yield Path(initdb).resolve().parent


def _folder_named_by(pg_config: str) -> Path:
    """Return the folder of the programs that the PG_CONFIG in the environment names; NotInstalled if none."""
    try:
        folder = _output(pg_config, "--bindir")
    except OSError as error:
        folder, reason = "", error.strerror or str(error)
    else:
        reason = "it names no folder of programs"
    if not folder:
        raise NotInstalled(
            f"PG_CONFIG is {pg_config!r}, which does not lead to a PostgreSQL: {reason}",
            hint="Unset PG_CONFIG, or let it name the pg_config of a PostgreSQL server.",
        )
    return Path(folder).resolve()


def _describe(bindir: Path) -> PostgresPrograms:
    text = _output(str(bindir / "postgres"), "--version")
    number = re.search(r"\b(\d+)", text)
    if number is None:
        raise NotInstalled(f"{bindir / 'postgres'} does not tell its version: {text!r}")
    version = int(number[1])
    return PostgresPrograms(version=version, bindir=bindir, has_plpython=_has_plpython(bindir, version))


def shared_folders(bindir: Path, version: int) -> tuple[Path, Path]:
    """Return where the PostgreSQL of these programs keeps its data files, and its loadable libraries."""
    pg_config = bindir / "pg_config"
    if pg_config.exists():
        return Path(_output(str(pg_config), "--sharedir")), Path(_output(str(pg_config), "--pkglibdir"))
    # Debian keeps pg_config in a client package, which a server may lack.
    return Path(f"/usr/share/postgresql/{version}"), Path(f"/usr/lib/postgresql/{version}/lib")


def _has_plpython(bindir: Path, version: int) -> bool:
    """Whether both the extension's control file and its library are there."""
    share, library = shared_folders(bindir, version)
    control = share / "extension" / "plpython3u.control"
    return control.exists() and any(library.glob("plpython3.*"))


def _output(*command: str) -> str:
    """Return what a program prints, or nothing where it fails."""
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    return finished.stdout.strip()
