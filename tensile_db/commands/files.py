"""Files and folders that commands are given."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensile_db.errors import InvalidRequest


def parse_folder(text: str | Path) -> Path:
    """Return a folder that is there, or could be; nothing is made.  For options, as `parser`.

    Raises InvalidRequest.
    """
    # Path("") is the current folder, which whoever has left a variable unset does not mean.
    if not str(text):
        raise InvalidRequest('"" names no folder', hint="Is a variable unset?  The current folder is `.`.")
    folder = Path(text)
    try:
        there = existing_part(folder)
    except OSError as error:
        raise InvalidRequest(
            f"cannot look into {folder}: {error.strerror or error}", hint="Name a folder of yours."
        ) from error
    if not there.is_dir():
        raise InvalidRequest(f"{there} is no folder", hint="Name a folder, or one that can be made.")
    return folder


def existing_part(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that is there.  Raises OSError."""
    return next(each for each in (folder, *folder.absolute().parents) if each.exists())


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise InvalidRequest where the path cannot be written to."""
    try:
        yield
    except OSError as error:
        raise InvalidRequest(
            f"cannot write to {path}: {error.strerror or error}", hint="Name a place that you may write to."
        ) from error
