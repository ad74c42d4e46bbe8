"""A Tape for the late runtime: remembers what was given to streams, by address, and gives it again.

It refuses what a GPU's capture refuses: the host's waiting, events from outside, streams that are not waited
for in the end.  What is let go of in a passage is overwritten with NaN there, in every replay; after `close`
all of the tape's memory is overwritten at once.
"""

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

CAPTURING = "operation not permitted when stream is capturing"


@dataclass(eq=False)
class LatePassage:
    """What was given to streams, in order: (stream, event recorded, event waited for, what makes work)."""

    main: object
    entries: list = field(default_factory=list)

    def require_joined(self):
        """Every stream's last work must come before something that the main stream waits for."""
        open_streams = {}
        for stream, recorded, waited, _ in self.entries:
            if stream is self.main and waited is not None:
                stop = open_streams.get(waited.stream)
                if stop is not None and stop[-1] is waited:
                    del open_streams[waited.stream]
            elif stream is not self.main:
                open_streams.setdefault(stream, []).append(recorded)
        assert not open_streams, "a capture was ended with unjoined work"


class LateTape:
    """A Tape (tensile_db/worker/devices/runtime.py) of a LateRuntime."""

    def __init__(self, runtime, granule):
        self.generator = torch.Generator()
        self.nbytes = 0
        #: Until the tape is closed.
        self.kept = []
        self._runtime = runtime
        #: Memory is taken in multiples of it, as a GPU's allocator does.
        self._granule = granule
        self._free = defaultdict(list)
        self._chunks = []
        self._is_open = True

    @contextmanager
    def allocating(self):
        current = self._runtime.current
        assert getattr(current, "tape", None) is None, "already recording to mempool_id"
        current.tape = self
        try:
            yield
        finally:
            current.tape = None

    @contextmanager
    def passage(self, stream):
        current = self._runtime.current
        with self.allocating(), self._runtime.on(stream):
            current.passage = LatePassage(stream)
            try:
                yield current.passage
                current.passage.require_joined()
            finally:
                current.passage = None

    def replay(self, passage, stream):
        assert self._is_open
        self._runtime.give_again(passage, stream)

    def at(self, storage):
        return self._runtime.at(storage)

    def close(self):
        assert self._is_open
        self._is_open = False
        self.kept.clear()
        self._runtime.open_tapes.remove(self)
        for chunk in self._chunks:
            chunk.fill(0xFF)

    def allocate(self, nbytes, make):
        """Return a piece of the tape's memory; make: a new one."""
        if self._free[nbytes]:
            return self._free[nbytes].pop()
        self._chunks.append(make(nbytes))
        self.nbytes += -(-nbytes // self._granule) * self._granule
        return self._chunks[-1]

    def let_go(self, chunk):
        """Take a piece back."""
        self._free[chunk.nbytes].append(chunk)
        passage = getattr(self._runtime.current, "passage", None)
        if passage is not None:
            passage.entries.append((passage.main, None, None, lambda: lambda: chunk.fill(0xFF)))
