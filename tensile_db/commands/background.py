"""The worker of the private cluster as a background process.

The process holds a lock on `<folder>/worker.lock` for as long as it lives, which nothing but its end takes
away: a lock that can be had means that there is no worker, whatever process number the file names.
"""

import fcntl
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tensile_db.errors import WorkerUnavailable

#: A worker that is told to stop writes a checkpoint of every job first.
STOP_TIMEOUT_S = 60

_COMMAND = (sys.executable, "-m", "tensile_db.cli", "worker")


class BackgroundWorker:
    """The worker of one folder, running or not."""

    def __init__(self, folder: Path) -> None:
        """Describe it; nothing is read or started yet."""
        self.lock = folder / "worker.lock"
        self.log = folder / "worker.log"
        #: Its cache of rows.
        self.cache = folder / "worker.cache"

    def pid(self) -> int | None:
        """Return its process number, or None where none runs."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            # Shared, so that two who look do not take each other for the worker.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_pid(descriptor)
        finally:
            os.close(descriptor)
        return None

    def options(self) -> list[str]:
        """Return the options of the running worker, as `start` was given them; empty where none runs."""
        pid = self.pid()
        if pid is None:
            return []
        with suppress(FileNotFoundError):
            command = Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
            return command[len(_COMMAND) :]
        return []

    def start(self, options: Sequence[str]) -> int:
        """Start it with the options of `tensile-db worker` and return its process number.

        Raises WorkerUnavailable where one runs already.
        """
        descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise WorkerUnavailable(
                    f"a worker runs already (process {self.pid()})", hint="Stop it with `tensile-db down`."
                ) from error
            os.ftruncate(descriptor, 0)
            # The lock lives on in the worker when this process lets go of it.
            os.set_inheritable(descriptor, True)
            with self.log.open("ab") as log:
                # Not subprocess, which has its children waited for: this one outlives us.
                pid = os.posix_spawn(
                    sys.executable,
                    [*_COMMAND, *options],
                    os.environ,
                    file_actions=[
                        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                        (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                        (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
                    ],
                    # Its own session: Ctrl-C at the terminal is not meant for it.
                    setsid=True,
                )
            os.pwrite(descriptor, str(pid).encode(), 0)
            return pid
        finally:
            os.close(descriptor)

    def stop(self) -> None:
        """Ask it to stop and wait; one that does not is killed, and its jobs go on from their checkpoints."""
        pid = self.pid()
        if pid is None:
            return
        # The second SIGTERM makes the supervisor kill the worker.
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
            if self._ends_within(STOP_TIMEOUT_S):
                return
        raise WorkerUnavailable(f"process {pid} does not end", hint=f"See {self.log}.")

    def said(self, lines: int = 20) -> str:
        """Return the last lines of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _ends_within(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self.pid() is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


def _read_pid(descriptor: int) -> int:
    """Return the number in a lock file; whoever starts a worker writes it a moment after taking the lock."""
    while not (text := os.pread(descriptor, 32, 0)):
        time.sleep(0.01)
    return int(text)
