"""Keeps a worker running: a parent that starts it, and starts it again when it dies.

A worker runs other people's networks in native code; whatever kills it must not end the service.  Parent
and child share a pipe, the child's standard input: it brings the configuration, for a connection string
may hold a password, and its end tells the child that its parent is gone.
"""

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tensile_db.errors import TensileError, WorkerUnavailable
from tensile_db.worker import openmp
from tensile_db.worker.config import WorkerConfig

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
#: A worker that lived this long died of something new.
_LONG_LIFE_S = 60.0

#: Exit status of a worker that was refused what it needs before it was up (EX_CONFIG of sysexits.h).
CANNOT_START = 78
#: Of one that was up.
_FAILED = 1

_STDIN = 0


def run_supervised(config: WorkerConfig) -> None:
    """Keep a worker running until SIGTERM or SIGINT; a second one ends it at once.

    In the main thread.  Raises WorkerUnavailable where no worker can be started at all.
    """
    supervisor = Supervisor(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: supervisor.stop())
    supervisor.run()


class Supervisor:
    """The parent of one worker; `start_process` starts one that calls `main`, with a pipe as its input."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        start_process: Callable[[], subprocess.Popen[bytes]] | None = None,
    ) -> None:
        self._config = config
        self._start_process = start_process or _start_process
        self._stopped = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def worker_pid(self) -> int | None:
        """The worker's process number at present."""
        child = self._child
        return None if child is None else child.pid

    def stop(self) -> None:
        """Pass the wish to stop on; the second time, do not take no for an answer."""
        child = self._child
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGKILL if self._stopped.is_set() else signal.SIGTERM)
        self._stopped.set()

    def run(self) -> None:
        """Run workers, one after another, until stopped.

        Raises WorkerUnavailable where the first one cannot start.  What one could that has died, the next one
        must be able to again: it is refused for what passes, e.g. memory of a GPU that its predecessor has
        yet to give back, or for what somebody has changed and may change back.
        """
        pause_s = _FIRST_PAUSE_S
        # Told by how workers end.  One that is killed has no time to leave a note, and to have lived for long
        # may mean to have waited for a database; but none that was up ends with CANNOT_START.  Some may be
        # killed before they are up: then a mistake is told again and again, where it might be told once.
        one_could_start = False
        while not self._stopped.is_set():
            started = time.monotonic()
            status = self._run_child()
            if status == CANNOT_START and not one_could_start:
                raise WorkerUnavailable("the worker cannot start", hint="The line above says why.")
            if self._stopped.is_set() or status == 0:
                return
            if time.monotonic() - started > _LONG_LIFE_S:
                pause_s = _FIRST_PAUSE_S
            one_could_start = True
            what = "cannot start, which an earlier one could" if status == CANNOT_START else "died"
            log.error("the worker %s (%s); the next one starts in %.1f s", what, _describe(status), pause_s)
            self._stopped.wait(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _run_child(self) -> int:
        child = self._start_process()
        self._child = child
        assert child.stdin is not None
        # Stopped between the loop's look and the child's start.
        if self._stopped.is_set():
            child.send_signal(signal.SIGTERM)
        try:
            child.stdin.write(_encode(self._config))
            child.stdin.flush()
        except BrokenPipeError:
            log.warning("the worker died while it was told what to do")
        # Not communicate(): a signal's handler must find the child unlocked.
        status = child.wait()
        child.stdin.close()
        return status


def _start_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tensile_db.worker.supervisor"],
        stdin=subprocess.PIPE,
        env=openmp.USUAL | os.environ,
        # Ctrl-C in a terminal is for the supervisor, which passes it on once.
        start_new_session=True,
    )


def main() -> None:
    """Run the worker that a supervisor asked for."""
    logging.basicConfig(
        level=os.environ.get("TENSILE_LOG_LEVEL", "INFO").upper(),
        format="%(asctime)s %(levelname)s %(threadName)s %(message)s",
    )
    # It tells of its plugins whenever it is imported.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    # PyTorch takes seconds to import: not before, for the supervisor has no use for it.
    from tensile_db.worker.service import Worker, prepare_process

    config = _decode(_read_line(_STDIN))
    worker = Worker(config)
    prepare_process(worker)
    threading.Thread(target=_stop_without_parent, args=(worker.stop,), daemon=True).start()
    try:
        worker.run()
    except TensileError as error:
        log.error("%s%s", error.message, f"  Hint: {error.hint}" if error.hint else "")
        sys.exit(_FAILED if worker.has_been_up else CANNOT_START)


def _stop_without_parent(stop: Callable[[], None]) -> None:
    # Not sys.stdin: a thread that waits in its buffer would keep the interpreter from ending.
    while os.read(_STDIN, 4096):
        pass
    stop()


def _read_line(descriptor: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        read = os.read(descriptor, 65536)
        if not read:
            # The supervisor died before it said anything.
            sys.exit(CANNOT_START)
        line += read
    return line


def _encode(config: WorkerConfig) -> bytes:
    return json.dumps(dataclasses.asdict(config), default=str).encode() + b"\n"


def _decode(line: bytes) -> WorkerConfig:
    values = json.loads(line)
    if values["cache_dir"] is not None:
        values["cache_dir"] = Path(values["cache_dir"])
    return WorkerConfig(**values)


def _describe(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name


if __name__ == "__main__":
    main()
