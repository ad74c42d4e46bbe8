"""Files and folders that commands are given."""

import os
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


def check_writable(file: Path | None, suffixes: tuple[str, ...]) -> None:
    """Raise InvalidRequest, before anything long is done, where a file cannot be written."""
    if file is None:
        return
    if str(file) == "-":
        raise InvalidRequest("a file is wanted, not standard output", hint="Name it, e.g. ./made.json.")
    if suffixes and file.suffix.lower() not in suffixes:
        raise InvalidRequest(
            f'cannot draw a picture as "{file.name}"', hint=f"Name a file that ends in {', '.join(suffixes)}."
        )
    if not file.parent.is_dir():
        raise InvalidRequest(f"there is no folder {file.parent}", hint="Make it first, or name another.")
    with writing(file):
        # What a link points to, which may not be there.
        meant = Path(os.path.realpath(file))
        is_new = not meant.exists()
        # Whoever reads from a pipe would take this for its end.
        if is_new or meant.is_file() or meant.is_dir():
            meant.open("ab").close()
        if is_new:
            meant.unlink()
