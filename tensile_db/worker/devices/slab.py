"""Host memory that is made once and handed out in pieces.

Memory that a GPU copies from and to must stay where it is; to have the system see to that takes milliseconds
for each piece, and the system has only so much to give.  So it is asked for seldom, in ever larger chunks,
and never given back before the end.

Source: pytorch#186162: a third of the cost of swapping was in making buffers.
"""

import ctypes
import threading
from bisect import insort
from collections.abc import Callable

import torch

from tensile_db.errors import HostOutOfMemory
from tensile_db.worker.devices.driver_errors import is_out_of_memory
from tensile_db.worker.devices.host_memory import new_storage

#: Pieces begin at multiples of this, as the rows of a page and a copy engine's bursts do.
_ALIGNMENT = 512
_FIRST_CHUNK_NBYTES = 64 * 2**20
#: Larger ones only for a tensor that is larger.
_LARGEST_CHUNK_NBYTES = 2**30


class Slab:
    """Chunks, and which parts of them are free.  Safe for many threads."""

    def __init__(self, limit_nbytes: int, make: Callable[[int], torch.Tensor]) -> None:
        """limit_nbytes: of all chunks together; make: memory of so many bytes, a uint8 tensor.

        What `make` raises passes, unless it says that there is no memory.
        """
        self.limit_nbytes = limit_nbytes
        #: Of all chunks.
        self.nbytes = 0
        self._make = make
        self._lock = threading.Lock()
        self._chunks: list[torch.Tensor] = []
        #: (address, size), by address; neighbours within a chunk are joined.
        self._free: list[tuple[int, int]] = []
        #: What was handed out: size by address.
        self._used: dict[int, int] = {}
        self._begins: set[int] = set()

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Return `nbytes` with anything in them, until `free`.  Raises HostOutOfMemory."""
        if nbytes == 0:
            return new_storage(0)
        size = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            place = self._find(size)
            if place is None:
                self._grow(size)
                place = self._find(size)
            assert place is not None, "a new chunk has room for what it was made for"
            address, found = self._free.pop(place)
            if found > size:
                insort(self._free, (address + size, found - size))
            self._used[address] = size
        window = (ctypes.c_uint8 * nbytes).from_address(address)
        return torch.frombuffer(window, dtype=torch.uint8).untyped_storage()

    def free(self, piece: torch.UntypedStorage) -> None:
        """Take a piece back; what was handed over earlier may still be using it (device.py's rules)."""
        if piece.nbytes() == 0:
            return
        with self._lock:
            address = piece.data_ptr()
            size = self._used.pop(address)
            insort(self._free, (address, size))
            place = self._free.index((address, size))
            # The later neighbour first, whose place does not change by it.
            for left in (place, place - 1):
                self._join(left)

    def close(self) -> None:
        """Let the chunks go; nobody may use a piece any more."""
        with self._lock:
            self._free.clear()
            self._used.clear()
            self._chunks.clear()
            self._begins.clear()
            self.nbytes = 0

    def _find(self, size: int) -> int | None:
        """Return the place of the smallest free part that is large enough."""
        fitting = [(found, place) for place, (_, found) in enumerate(self._free) if found >= size]
        return min(fitting)[1] if fitting else None

    def _join(self, left: int) -> None:
        if not 0 <= left < len(self._free) - 1:
            return
        (begin, size), (after, more) = self._free[left : left + 2]
        if begin + size == after and after not in self._begins:
            self._free[left : left + 2] = [(begin, size + more)]

    def _grow(self, size: int) -> None:
        wanted = min(max(_FIRST_CHUNK_NBYTES, self.nbytes), _LARGEST_CHUNK_NBYTES)
        # Powers of two: PyTorch's allocator of pinned memory makes nothing else.
        chunk_nbytes = 1 << (max(wanted, size) - 1).bit_length()
        while chunk_nbytes > self.limit_nbytes - self.nbytes and chunk_nbytes // 2 >= size:
            chunk_nbytes //= 2
        if chunk_nbytes > self.limit_nbytes - self.nbytes:
            raise self._no_room(size)
        chunk = self._make_chunk(chunk_nbytes, size)
        self._chunks.append(chunk)
        self.nbytes += chunk.nbytes
        self._begins.add(chunk.data_ptr())
        insort(self._free, (chunk.data_ptr(), chunk.nbytes))

    def _make_chunk(self, nbytes: int, size: int) -> torch.Tensor:
        """Make a chunk of `nbytes`, or a smaller one that takes `size` where the system has no such piece."""
        while True:
            try:
                return self._make(nbytes)
            except Exception as error:
                # What else it is, a lost device above all, is no matter of sizes.
                if not is_out_of_memory(error):
                    raise
                if nbytes // 2 < size:
                    raise self._no_room(size, refused=True) from error
            nbytes //= 2

    def _no_room(self, size: int, *, refused: bool = False) -> HostOutOfMemory:
        return HostOutOfMemory(
            wanted_nbytes=size,
            used_nbytes=sum(self._used.values()),
            limit_nbytes=self.limit_nbytes,
            refused=refused,
        )
