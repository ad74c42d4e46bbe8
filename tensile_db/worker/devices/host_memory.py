"""The host's buffers for what is swapped out, kept for the next swap of the same size.

A plan swaps the same sizes in every iteration, and making a buffer is dear: page faults on any machine,
about 3 ms where it is pinned for a GPU.  So a free buffer stays until `trim`.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable

import torch

from tensile_db.errors import HostOutOfMemory


def new_storage(nbytes: int) -> torch.UntypedStorage:
    """Return `nbytes` of ordinary memory, not cleared."""
    return torch.UntypedStorage(nbytes)  # type: ignore[no-untyped-call]


def _forget(_buffer: torch.UntypedStorage) -> None:
    """Leave a buffer to Python, which frees it."""


class HostPool:
    """Buffers by size.  Safe for many threads."""

    def __init__(
        self,
        make: Callable[[int], torch.UntypedStorage] = new_storage,
        discard: Callable[[torch.UntypedStorage], None] = _forget,
    ) -> None:
        """make: a buffer of so many bytes; discard: one that is no longer kept."""
        self._make = make
        self._discard = discard
        self._lock = threading.Lock()
        #: Held while buffers are taken to be given back at once.
        self._reserving = threading.RLock()
        self._free: dict[int, list[torch.UntypedStorage]] = defaultdict(list)
        #: Bytes of the buffers handed out.
        self.used_nbytes = 0
        #: Bytes of the buffers kept for later.
        self.free_nbytes = 0

    def acquire(self, nbytes: int) -> torch.UntypedStorage:
        """Return a buffer of exactly `nbytes`, with anything in it.  Raises what makes buffers."""
        with self._lock:
            self.used_nbytes += nbytes
            if buffers := self._free.get(nbytes):
                self.free_nbytes -= nbytes
                return buffers.pop()
        try:
            return self._made(nbytes)
        except BaseException:
            with self._lock:
                self.used_nbytes -= nbytes
            raise

    def reserve(self, sizes: Iterable[int]) -> None:
        """See to it that buffers of all these sizes are free at once.

        Raises what makes buffers; then some may be.
        """
        taken: list[torch.UntypedStorage] = []
        with self._reserving:
            try:
                taken.extend(map(self.acquire, sizes))
            finally:
                for buffer in taken:
                    self.release(buffer)

    def release(self, buffer: torch.UntypedStorage) -> None:
        """Take a buffer back; nobody may use it any more."""
        nbytes = buffer.nbytes()
        with self._lock:
            self.used_nbytes -= nbytes
            self.free_nbytes += nbytes
            self._free[nbytes].append(buffer)

    def _made(self, nbytes: int) -> torch.UntypedStorage:
        try:
            return self._make(nbytes)
        except HostOutOfMemory:
            # What is kept for later has other sizes; and what another thread reserves is free in a moment.
            with self._reserving:
                self.trim()
                return self._make(nbytes)

    def trim(self) -> None:
        """Let go of all free buffers: when plans change, other sizes are needed."""
        with self._lock:
            unwanted = [buffer for buffers in self._free.values() for buffer in buffers]
            self._free.clear()
            self.free_nbytes = 0
        for buffer in unwanted:
            self._discard(buffer)
