"""A Tape for the late runtime that hands memory out as PyTorch's allocator does: from ranges that grow."""

import numpy as np

from tensile_db.scheduler.sharing import growing_range
from tensile_db.scheduler.sharing.growing_range import in_granules
from tests.late.tape import LateTape


class RangeTape(LateTape):
    """Small pieces come from one range, large ones from another; each lies at its address there."""

    def __init__(self, runtime, most_nbytes):
        """most_nbytes: of addresses of each range."""
        super().__init__(runtime, 1)
        pages = growing_range._SMALL_PAGE_NBYTES, growing_range.PAGE_NBYTES
        self._ranges = [growing_range._Range(page_nbytes) for page_nbytes in pages]
        self._memories = [np.empty(most_nbytes, np.uint8) for _ in self._ranges]
        #: By address.
        self._holders = {}

    def allocate(self, nbytes, make):
        large = nbytes > growing_range.SMALL_NBYTES
        among, memory, holder = self._ranges[large], self._memories[large], object()
        among.take(holder, in_granules(nbytes))
        address, _ = among._held[holder]
        chunk = memory[address : address + nbytes]
        assert chunk.nbytes == nbytes, "the model of a range has too few addresses"
        chunk.fill(0xFF)
        self._holders[chunk.ctypes.data] = among, holder
        self._chunks.append(chunk)
        self.nbytes = sum(each.nbytes for each in self._ranges)
        return chunk

    def let_go(self, chunk):
        among, holder = self._holders.pop(chunk.ctypes.data)
        among.give(holder)
        super().let_go(chunk)
