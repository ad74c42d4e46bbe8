"""Processes of sections: started together, so that what they import is there when their turn comes."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

#: How long a process has to tidy up when it is told to end, before it is killed.
_TIDY_S = 8.0
#: How long is waited for imports, which end by themselves.
_IMPORTS_S = 60.0
#: Sections that are many processes at a time, not one.
_MANY_PROCESSES = ("tests", "correctness", "capturing")


@contextmanager
def held(
    names: Iterable[str], options: Sequence[str], folder: Path
) -> Iterator[Mapping[str, subprocess.Popen[bytes]]]:
    """Start a process for each section, which waits for `go`; those that never went end with the context.

    options: of bench.gpu.section; folder: for results and logs.  Gives them when all have imported what they
    need, so that the first to go has the machine for itself.
    """
    processes: dict[str, subprocess.Popen[bytes]] = {}
    all_closed, ready = os.pipe()
    try:
        for name in names:
            command = [sys.executable, "-m", "bench.gpu.section", name, *options, "--ready", str(ready)]
            command += ["--out", str(folder / f"{name}.json")]
            log = folder / f"{name}.log"
            processes[name] = start(name, command, log, stdin=subprocess.PIPE, pass_fds=(ready,))
        os.close(ready)
        select.select([all_closed], [], [], _IMPORTS_S)
        os.close(all_closed)
        yield processes
    finally:
        for process in processes.values():
            _let_go(process)


def start(
    name: str,
    command: Sequence[str],
    log: Path,
    *,
    stdin: int | None = None,
    pass_fds: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:
    """Start a section's process in a group of its own; what it prints goes into its log."""
    environment = dict(os.environ)
    if name in _MANY_PROCESSES:
        # Else each would have a thread a core for what the host computes.
        environment["OMP_NUM_THREADS"] = "2"
    with log.open("w") as said:
        return subprocess.Popen(
            command,
            stdin=stdin,
            pass_fds=pass_fds,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )


def go(process: subprocess.Popen[bytes], limit_s: float) -> None:
    """Tell a section that waits to begin, and how many seconds it has from now on."""
    assert process.stdin is not None, "the section was not started to wait"
    # One that has died meanwhile says why in its log, and its status tells.
    with suppress(BrokenPipeError):
        process.stdin.write(f"{limit_s} {time.monotonic()}\n".encode())
        # What it starts would inherit a pipe that never ends.
        process.stdin.close()


def finish(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """Let a process run at most so long; return its exit status, 124 where time ran out."""
    try:
        return process.wait(max(1.0, limit_s))
    except subprocess.TimeoutExpired:
        return 124
    finally:
        # What it has started in sessions of their own, it ends itself.
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TIDY_S)
        # The children of one that ended, too.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _let_go(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()
    if process.poll() is None:
        process.kill()
    process.wait()
