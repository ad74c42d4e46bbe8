"""Files and folders that commands write to."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tensile_db.errors import InvalidRequest


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise InvalidRequest where the path cannot be written to."""
    try:
        yield
    except OSError as error:
        raise InvalidRequest(
            f"cannot write to {path}: {error.strerror or error}", hint="Name a place that you may write to."
        ) from error
