"""Swaps of an iteration that is taken down: copies within passages, and between them; memory that stays."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from tensile_db.worker.devices.accounts import Account
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.host_memory import HostPool
from tensile_db.worker.devices.recording import Recording
from tensile_db.worker.devices.under_way import Copy
from tensile_db.worker.execution.swapper import Swapper


class HighWater:
    """Charges a job's account with the most that was held at once; what is let go of stays charged."""

    def __init__(self, account: Account) -> None:
        self.job = account.job
        #: Charged at present.
        self.nbytes = 0
        self._account = account
        self._live_nbytes = 0

    def charge(self, nbytes: int) -> None:
        """Take `nbytes`.  Raises DeviceOutOfMemory."""
        more_nbytes = self._live_nbytes + nbytes - self.nbytes
        if more_nbytes > 0:
            self._account.charge(more_nbytes)
            self.nbytes += more_nbytes
        self._live_nbytes += nbytes

    def release(self, nbytes: int) -> None:
        """Give `nbytes` back to what comes later in the recording."""
        self._live_nbytes -= nbytes

    def reserve(self, nbytes: int) -> None:
        """Charge ahead for what is going to be held: until `settle`, others find that much less.

        Raises DeviceOutOfMemory.
        """
        self._account.charge(nbytes, is_held=False)
        self.nbytes += nbytes

    def settle(self, nbytes: int) -> None:
        """Have exactly so many bytes charged.  Raises DeviceOutOfMemory."""
        if nbytes > self.nbytes:
            self._account.charge(nbytes - self.nbytes)
        else:
            self._account.release(self.nbytes - nbytes)
        self.nbytes = nbytes
        if nbytes:
            self._account.note_peaks()


class LaterCopy:
    """A copy between passages: noted now, handed over in every replay."""

    def __init__(self, begin: Callable[[], Copy], swapper: "RecordingSwapper") -> None:
        self._begin_copy = begin
        self._swapper = swapper
        self._copy: Copy | None = None

    def begin(self) -> None:
        """Hand it over."""
        self._copy = self._begin_copy()

    def end(self) -> None:
        """Have later kernels come after it."""
        assert self._copy is not None, "a copy is waited for that was not begun"
        self._copy.wait()
        self._copy = None

    def wait(self) -> None:
        """Note that it is waited for here."""
        self._swapper.note(self.end)

    def has_ended(self) -> bool:
        """Return False: each replay begins it anew.  Nobody asks; copies can be."""
        return False

    def cancel(self) -> None:
        """Give it up, if it is under way."""
        if self._copy is not None:
            self._copy.cancel()
            self._copy = None


class RecordingSwapper(Swapper):
    """The swaps of a recording's blocks.

    Persistent blocks have a place of their own on the device if they begin there, and on the host; others
    have what the recording lets go of and hands out again.
    """

    def __init__(
        self,
        device: Device,
        recording: Recording,
        held: HighWater,
        blocks: Sequence[Block],
        parts: list[Callable[[], None]],
    ) -> None:
        """blocks: of the recording; parts: what a replay does, to which copies between passages are added."""
        super().__init__(device, held)
        self._in_passage = False
        self._recording = recording
        self._parts = parts
        self._host = HostPool(self._make_host)
        persistent = [block for block in blocks if block.persistent]
        self._places = {block: block.storage for block in persistent if block.storage is not None}
        self._host_places = {block: block.host for block in persistent if block.host is not None}
        #: Host memory that is the recording's own.
        self._own_host: list[torch.UntypedStorage] = []
        self._later: list[LaterCopy] = []
        self._kept: set[Block] = set()

    @property
    def host_sizes(self) -> list[int]:
        """Sizes of the host's buffers that are the recording's own."""
        return [buffer.nbytes() for buffer in self._own_host]

    def reserve_host(self, sizes: Sequence[int]) -> None:
        """Take buffers of these sizes for what is swapped out: while a passage is taken down none is made.

        A capture may refuse the call that pins memory, or PyTorch count the memory as the capture's.
        Raises HostOutOfMemory.
        """
        self._host.reserve(sizes)

    @contextmanager
    def within_passage(self) -> Iterator[None]:
        """Have copies begun within be the passage's that is taken down."""
        self._in_passage = True
        try:
            yield
        finally:
            self._in_passage = False

    def note(self, part: Callable[[], None]) -> None:
        """Add what a replay does next."""
        assert not self._in_passage, "a copy of a passage is waited for within it"
        self._parts.append(part)

    def abandon_copies(self) -> None:
        """Give up what a replay that broke off has under way."""
        for copy in self._later:
            copy.cancel()

    def keep(self, block: Block) -> None:
        """Leave a block's memory charged when it is let go of."""
        self._kept.add(block)

    def close(self) -> None:
        """Give the host's memory back; nothing is under way."""
        for buffer in self._own_host:
            self._device.host.release(buffer)
        self._own_host.clear()
        self._places.clear()
        self._host_places.clear()

    def _make_host(self, nbytes: int) -> torch.UntypedStorage:
        self._own_host.append(self._device.host.acquire(nbytes))
        return self._own_host[-1]

    def _acquire_host(self, block: Block) -> torch.UntypedStorage:
        if not block.persistent:
            return self._host.acquire(block.nbytes)
        if block not in self._host_places:
            self._host_places[block] = self._host.acquire(block.nbytes)
        return self._host_places[block]

    def _release_host(self, block: Block, buffer: torch.UntypedStorage) -> None:
        if not block.persistent:
            self._host.release(buffer)

    def _acquire_device(self, block: Block) -> torch.UntypedStorage:
        if block in self._places:
            return self._places[block]
        self._account.charge(block.nbytes)
        return self._recording.allocate(block.nbytes)

    def _release_device(self, block: Block) -> None:
        if block not in self._places and block not in self._kept:
            self._account.release(block.nbytes)

    def _begin_out(self, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int) -> Copy:
        if self._in_passage:
            return self._recording.copy_out(self._account.job, source, target, delta_ns)
        there = self._recording.at(source)
        return self._note(lambda: self._device.copy_out(self._account.job, there, target, delta_ns))

    def _begin_in(self, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int) -> Copy:
        if self._in_passage:
            return self._recording.copy_in(self._account.job, source, target, delta_ns)
        there = self._recording.at(target)
        return self._note(lambda: self._device.copy_in(self._account.job, source, there, delta_ns))

    def _note(self, begin: Callable[[], Copy]) -> Copy:
        copy = LaterCopy(begin, self)
        self._later.append(copy)
        self.note(copy.begin)
        return copy

    def _wait_for(self, copy: Copy) -> None:
        copy.wait()
