"""What a worker cannot be given of its machine.  No PyTorch: a command checks it first."""

import math
import os

from tensile_db.errors import InvalidRequest, format_nbytes
from tensile_db.worker.devices.names import is_cuda
from tensile_db.worker.host import host_memory_nbytes

#: Kernels' threads beyond the cores only take turns.  Some are let pass, for measuring; with very many, which
#: every job has of its own, the system has none left, and OpenMP ends the process without a word.
_THREADS_A_CORE = 8

#: No network trains in less, and whoever writes less has forgotten a unit.
_LEAST_NBYTES = 2**20


def require_memory(device: str, nbytes: int | None) -> None:
    """Raise InvalidRequest where so much memory for all jobs is of no use, or more than the cpu device has.

    How much a GPU has is known when it is opened.
    """
    if nbytes is None:
        return
    if nbytes < _LEAST_NBYTES:
        raise InvalidRequest(
            f"the device's memory cannot be {format_nbytes(nbytes)}: no job fits",
            hint="Is a unit missing?  Give it as --memory, e.g. 2GiB.",
        )
    if not is_cuda(device):
        _require_there("the device's memory", nbytes, "--memory")


def require_host_memory(nbytes: int | None) -> None:
    """Raise InvalidRequest where the host has less memory than what is swapped out may take."""
    if nbytes is not None:
        _require_there("memory of the host", nbytes, "--host-memory")


def _require_there(what: str, nbytes: int, option: str) -> None:
    most_nbytes = host_memory_nbytes()
    if nbytes > most_nbytes:
        # Rounded away from each other, so that they are not told as the same.
        raise InvalidRequest(
            f"{what} cannot be {format_nbytes(nbytes, math.ceil)}: this machine has"
            f" {format_nbytes(most_nbytes, math.floor)}",
            hint=f"Give less {option}, or none: by default a part of what there is.",
        )


def require_threads(threads: int | None) -> int | None:
    """Return a number of threads for a job's kernels; raise InvalidRequest where it is too many."""
    cores = os.cpu_count() or 1
    most = _THREADS_A_CORE * cores
    if threads is not None and threads > most:
        raise InvalidRequest(
            f"{threads} threads are too many for {cores} cores: {most} at most",
            hint=f"More than {cores} make nothing faster: give --threads {cores} or less.",
        )
    return threads
