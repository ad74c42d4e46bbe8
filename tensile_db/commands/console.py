"""What the commands say: results on standard output, progress and errors on standard error."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tensile_db.errors import TensileError

# Without emoji: what stands between colons may be a policy's name.
out = Console(highlight=False, emoji=False)
err = Console(stderr=True, highlight=False, emoji=False)


#: From then on a step says why it takes so long, where it knows.
_SLOW_S = 4.0


@contextmanager
def step(title: str, *, slow: str = "") -> Iterator[None]:
    """Show that something long goes on, then how long it took; slow: what to say meanwhile."""
    begin_s = time.monotonic()
    if not err.is_terminal:
        err.print(f"... {title}")
    explaining = threading.Timer(_SLOW_S, lambda: err.print(f"... {slow}", soft_wrap=True))
    explaining.daemon = True
    try:
        with err.status(title):
            if slow:
                explaining.start()
            yield
    finally:
        explaining.cancel()
    err.print(Text("  ✓ ", style="green") + Text(f"{title} ({time.monotonic() - begin_s:.1f} s)"))


def complain(message: str, hint: str = "") -> None:
    """Print an error the way psql prints one."""
    err.print(Text("ERROR:  ", style="bold red") + Text(message), soft_wrap=True)
    if hint:
        err.print(Text("HINT:  ", style="bold") + Text(hint), soft_wrap=True)


def complain_of(error: TensileError) -> None:
    """Print one of our own errors."""
    complain(error.message, error.hint)


def program() -> str:
    """Return how this command was called, so that what we advise can be pasted: `.venv/bin/tensile-db`."""
    called = Path(sys.argv[0])
    found = shutil.which("tensile-db")
    if found is not None and Path(found).resolve() == called.resolve():
        return "tensile-db"
    return os.path.relpath(called) if called.name == "tensile-db" else f"{sys.executable} -m tensile_db.cli"
