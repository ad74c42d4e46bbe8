"""Starts the private cluster's worker, in the place of one with other options where such a one runs."""

import time
from collections.abc import Sequence
from pathlib import Path

from tensile_db.commands.background import BackgroundWorker
from tensile_db.commands.console import err, out, step
from tensile_db.commands.worker_options import WorkerOptions, remember
from tensile_db.errors import WorkerUnavailable
from tensile_db.worker.devices.limits import require_memory, require_threads
from tensile_db.worker.devices.names import is_cuda, require_device_name

#: How long a worker may take from its start to its first sign of life: torch is slow to import.
_TIMEOUT_S = 120

_IS_READY = "SELECT 1 FROM tensile.workers WHERE state = 'ready' AND heartbeat_at > now() - interval '10 s'"


def start_worker(folder: Path, options: WorkerOptions, *, fresh: bool = False) -> None:
    """Start the worker, or another where one with other options runs, and wait for its first sign of life.

    fresh: another in any case, for one that runs may be of older code.
    Raises UnknownName, InvalidRequest and NoSuchDevice, with the one that runs left alone, and
    WorkerUnavailable with what the log says; then one that ran with other options has been started again.
    """
    from tensile_db.local import WORKER_LOGIN, LocalCluster

    cluster, background = LocalCluster(folder), BackgroundWorker(folder)
    cache = ["--cache", str(background.cache.absolute())]
    arguments = ["--dsn", cluster.dsn(user=WORKER_LOGIN), *cache, *options.arguments()]
    _require_device(options.device)
    # Those of the last time may be another machine's.
    require_threads(options.threads)
    require_memory(options.device, options.memory_nbytes)
    replaced: list[str] = []
    if background.pid() is not None:
        replaced = background.options()
        if replaced == arguments and not fresh:
            out.print(f"A worker on {options.device} runs already.")
            return
        with step("stopping the worker that runs"):
            background.stop()
    try:
        with step(f"starting a worker on {options.device}"):
            background.start(arguments)
            _await_worker(cluster.dsn(), background)
    except BaseException:
        # Whatever it was, an interrupt too: jobs that nobody asked to stop wait for the earlier one.
        if replaced and replaced != arguments:
            _start_again(background, replaced)
        raise
    remember(folder, options)


def _require_device(name: str) -> None:
    """Raise what the worker would, as far as can be told without taking any of the device's memory."""
    require_device_name(name)
    if is_cuda(name):
        from tensile_db.worker.devices.cuda.opening import require_present

        require_present(name)


def _start_again(background: BackgroundWorker, arguments: Sequence[str]) -> None:
    """Start the earlier worker; why another did not start matters more than whether this one does."""
    try:
        # The one that did not start in time may still be at it.
        background.stop()
        with step("starting the earlier worker again"):
            background.start(arguments)
    except WorkerUnavailable as error:
        err.print(f"    {error.message}", soft_wrap=True)


def _await_worker(dsn: str, background: BackgroundWorker) -> None:
    import psycopg

    deadline = time.monotonic() + _TIMEOUT_S
    with psycopg.connect(dsn, autocommit=True) as connection:
        while connection.execute(_IS_READY).fetchone() is None:
            if background.pid() is None or time.monotonic() > deadline:
                raise WorkerUnavailable(
                    f"the worker does not start:\n{background.said()}", hint=f"See {background.log}."
                )
            time.sleep(0.1)
