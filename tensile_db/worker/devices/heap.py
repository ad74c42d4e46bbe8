"""Keeps the C library from giving memory back that the next op asks for again.

By default glibc returns large freed blocks to the system at once, and every op then faults its results in
page by page, and more so in threads other than the first: a quarter of the time of a small network's step.
A GPU's allocator keeps what it has for the same reason.

Source: mallopt(3), malloc_trim(3).  Elsewhere than with glibc nothing happens.
"""

import ctypes

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

#: The largest block that glibc will serve from its heap (DEFAULT_MMAP_THRESHOLD_MAX on 64-bit machines).
_HEAP_BLOCK_NBYTES = 32 * 1024 * 1024


def keep_freed_memory() -> None:
    """Let freed memory stay with the process, whose threads share one heap from now on."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _HEAP_BLOCK_NBYTES)
        mallopt(_M_TRIM_THRESHOLD, -1)
        mallopt(_M_ARENA_MAX, 1)


def give_back_freed_memory() -> None:
    """Return to the system what is free now; takes milliseconds."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
