"""Tells a private cluster's files from others', and deletes no more than them."""

import shutil
from pathlib import Path

#: At the end of a cluster's postgresql.conf: no other's has it.
INCLUDE = "include_if_exists = 'tensile.conf'"

#: What a cluster's home has in it while it is made or deleted: `data` is there when it is whole.
_MADE = frozenset({"data.new", "run", "server.log"})


def is_ours(home: Path, lock: Path) -> bool:
    """Tell whether a cluster's home was made by us; one made half-way was, where the lock is that it takes.

    Raises PermissionError.
    """
    data = home / "data"
    try:
        if (data / "PG_VERSION").exists():
            settings = (data / "postgresql.conf").read_text(errors="replace")
            return (data / "tensile.conf").exists() or INCLUDE in settings
        return lock.exists() and {path.name for path in home.iterdir()} <= _MADE
    except (FileNotFoundError, NotADirectoryError):
        return False


def remove_home(home: Path) -> None:
    """Delete what we made in a cluster's home, and the home itself where that was all.  Raises OSError."""
    data, fresh = home / "data", home / "data.new"
    if fresh.exists():
        shutil.rmtree(fresh)
    # First of all, so that a cluster deleted half-way is taken for one made half-way.
    if data.exists():
        data.rename(fresh)
    for folder in (fresh, home / "run"):
        if folder.exists():
            shutil.rmtree(folder)
    (home / "server.log").unlink(missing_ok=True)
    if not any(home.iterdir()):
        home.rmdir()
