"""Lays out a PostgreSQL so that it runs from any folder of a machine that has none.

    lib/postgresql/15/bin/    a script for each program (paths below the installation's own prefix)
    lib/postgresql/15/lib/    what the server loads;  share/postgresql/15/    its data files
    programs/                 the programs themselves
    libraries/                every shared library that they load, the C library and its loader among them
    loader/                   the loader, once under each program's name
    python/                   plpython3u's standard library
    locale/                   C.UTF-8

A program is started by its script through the loader that was packed, with the packed libraries and no
others: neither the distribution nor its age matters.  PostgreSQL finds its folders from the name it is called
by, which is the script's.  No variable tells where libraries are, for /bin/sh, which PostgreSQL calls, must
not hear of it.
"""

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tensile_db.errors import NotInstalled
from tensile_db.local_postgres import PostgresPrograms, shared_folders

_PROGRAMS = ("initdb", "pg_config", "pg_ctl", "postgres", "psql")
#: What the server loads: its languages, dblink, and what databases of any encoding want at initdb.
_LOADABLE = ("plpgsql.so", "plpython3.so", "dblink.so", "dict_snowball.so", "*_and_*.so", "euc2004_*.so")
_EXTENSIONS = r"(plpgsql|plpython3u|dblink)(\.|--)"
_LOCALES = ("/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8")

#: Of Python's standard library, what nobody calls who has neither terminal, window nor compiler.
_LEFT_OUT = frozenset({"__pycache__", "dist-packages", "site-packages", "lib-dynload", "test", "tests"}) | {
    *("ensurepip", "idlelib", "lib2to3", "pydoc_data", "tkinter", "turtledemo")
}
_LEFT_OUT_LIBRARIES = re.compile(r"_(ctypes_)?test|_xx|xx|_curses|_dbm|_gdbm|_sqlite3|_tkinter|nis|readline")

_SCRIPT = """\
#!/bin/sh
# Starts {name} through the loader and the libraries that were packed with it.
root=$(cd "${{0%/*}}/{up}" && pwd) || exit 1
export PYTHONHOME="$root/python" LOCPATH="$root/locale"
exec "$root/loader/{name}" --inhibit-cache --library-path "$root/libraries" --argv0 "$0" \\
    "$root/programs/{name}" "$@"
"""


def lay_out(programs: PostgresPrograms, folder: Path) -> Path:
    """Copy an installed PostgreSQL into a folder; return where its scripts lie, relative to the folder.

    Raises NotInstalled where a part of it is missing.
    """
    share, library = shared_folders(programs.bindir, programs.version)
    prefix = os.path.commonpath([programs.bindir, share, library])
    bindir, share_to, library_to = (
        Path(os.path.relpath(path, prefix)) for path in (programs.bindir, share, library)
    )
    _copy_tree(share, folder / share_to)
    binaries = [programs.bindir / name for name in _PROGRAMS if (programs.bindir / name).exists()]
    loadable = [path for pattern in _LOADABLE for path in sorted(library.glob(pattern))]
    python = _lay_out_python(library / "plpython3.so", folder / "python" / "lib")
    libraries, loader = _libraries([*binaries, *loadable, *python])
    _copy(binaries, folder / "programs")
    _copy(loadable, folder / library_to)
    for name, path in libraries.items():
        _copy([path], folder / "libraries", name)
    (folder / "loader").mkdir()
    (folder / bindir).mkdir(parents=True)
    for path in binaries:
        # The name is what `ps` shows, and what local.py knows a server by.
        (folder / "loader" / path.name).symlink_to(f"../libraries/{loader}")
        script = folder / bindir / path.name
        script.write_text(_SCRIPT.format(name=path.name, up="/".join([".."] * len(bindir.parts))))
        script.chmod(0o755)
    _copy_tree(_first(_LOCALES, "the locale C.UTF-8"), folder / "locale" / "C.utf8")
    return bindir


def _copy_tree(source: Path, target: Path) -> None:
    def left_out(folder: str, names: list[str]) -> Iterable[str]:
        if Path(folder) == source / "extension":
            return [name for name in names if not re.match(_EXTENSIONS, name)]
        return [name for name in names if name in {"man", "locale"}]

    shutil.copytree(source, target, ignore=left_out)


def _copy(paths: Iterable[Path], folder: Path, name: str | None = None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        shutil.copy(path, folder / (name or path.name))


def _libraries(binaries: Iterable[Path]) -> tuple[dict[str, Path], str]:
    """Return the libraries that these files load, by the names they load them by, and the loader's name.

    Raises NotInstalled where one is missing.
    """
    found: dict[str, Path] = {}
    loader = ""
    for binary in binaries:
        listed = subprocess.run(["/usr/bin/ldd", binary], capture_output=True, text=True, check=True).stdout
        for name, path in _listed(listed):
            if not path:
                raise NotInstalled(f"{binary} wants {name}, which is missing", hint="Install it again.")
            if name.startswith("/"):
                loader = Path(name).name
            found[Path(name).name] = Path(path)
    return found, loader


def _listed(listed: str) -> Iterator[tuple[str, str]]:
    for line in listed.splitlines():
        # The loader has no arrow, the kernel's own library no file.
        match line.split():
            case [name, "=>", "not", "found"]:
                yield name, ""
            case [name, "=>", path, _]:
                yield name, path
            case [path, _] if path.startswith("/"):
                yield path, path


def _lay_out_python(language: Path, folder: Path) -> list[Path]:
    """Lay out the standard library of plpython3u's Python; return its loadable modules, as installed.

    The others lie in one archive, compiled where the distribution has compiled them.
    """
    libraries, _ = _libraries([language])
    name = next((name for name in libraries if name.startswith("libpython3.")), "")
    version = ".".join(name.removeprefix("libpython").split(".")[:2])
    places = [parent / f"python{version}" for parent in libraries[name].parents] if name else []
    places += [place.with_name("lib") / place.name for place in places]
    source = _first(
        [place for place in places if (place / "os.py").exists()], f"Python {version}'s standard library"
    )
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / f"python{version.replace('.', '')}.zip", "w") as archive:
        for path in sorted(source.rglob("*.py")):
            inside = path.relative_to(source)
            if not _LEFT_OUT.intersection(inside.parts) and not inside.parts[0].startswith("config-"):
                (compiled,) = [
                    *path.parent.glob(f"__pycache__/{path.stem}.cpython-{version.replace('.', '')}.pyc")
                ] or [path]
                archive.write(compiled, inside.with_suffix(compiled.suffix))
    modules = [
        path for path in sorted(source.glob("lib-dynload/*.so")) if not _LEFT_OUT_LIBRARIES.match(path.name)
    ]
    _copy(modules, folder / f"python{version}" / "lib-dynload")
    return modules


def _first(places: Iterable[str | Path], what: str) -> Path:
    for place in places:
        if Path(place).exists():
            return Path(place)
    raise NotInstalled(f"{what} is missing", hint="`make setup` installs it on Debian and Ubuntu.")
