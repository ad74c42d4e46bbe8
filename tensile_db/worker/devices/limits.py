"""What a worker cannot be given of its machine.  No PyTorch: a command checks it first."""

import os

from tensile_db.errors import InvalidRequest

#: Kernels' threads beyond the cores only take turns.  Some are let pass, for measuring; with very many, which
#: every job has of its own, the system has none left, and OpenMP ends the process without a word.
_THREADS_A_CORE = 8


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
