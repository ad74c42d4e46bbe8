"""The SQL files and migrations that belong to the package, in a checkout and when installed."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def sql_folder() -> Path:
    """Return the folder of functions and views."""
    return _folder("sql")


def migrations_folder() -> Path:
    """Return the folder of Alembic's env.py and versions."""
    return _folder("migrations")


def _folder(name: str) -> Path:
    """Return a folder that pyproject.toml installs as `tensile_db/_<name>`; a checkout has it beside us."""
    installed = _PACKAGE / f"_{name}"
    return installed if installed.is_dir() else _PACKAGE.parent / name
