"""What an asynchronous device is made of: streams, events, memory, copies.

A stream carries out what it is given in order, later; streams know nothing of each other but by events.  All
that is particular to one maker's hardware lies behind this, and everything that is not lies before it
(asynchronous.py), so that the order of kernels and copies is tested without a GPU.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch

#: Whatever a runtime makes of them.
Stream = Any
Event = Any


#: Work given to a stream between two moments, taken down.
Passage = Any


class Tape(Protocol):
    """Memory that stays, and work over it that is taken down instead of done.  Used by one thread only."""

    @property
    def generator(self) -> torch.Generator:
        """What kernels that are taken down draw from; each replay goes on from its state and changes it."""
        ...

    @property
    def nbytes(self) -> int:
        """Device memory that it holds, used at the moment or not."""
        ...

    def allocating(self) -> AbstractContextManager[Any]:
        """Have the calling thread's allocations come from the tape; not within `passage`."""
        ...

    def passage(self, stream: Stream) -> AbstractContextManager[Passage]:
        """Take down what the calling thread gives to a stream, and to streams that wait for its events.

        They must be waited for in turn; nobody else may use these streams.  Allocations come from the tape.
        """
        ...

    def replay(self, passage: Passage, stream: Stream) -> None:
        """Give a passage to a stream, in whose order it begins and ends as a whole."""
        ...

    def at(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the same memory without holding it."""
        ...

    def close(self) -> None:
        """Let the memory go; all passages have run, or never will."""
        ...


class Runtime(Protocol):
    """One device's streams and memory.  Safe for many threads."""

    @property
    def torch_device(self) -> torch.device:
        """Where PyTorch puts its tensors."""
        ...

    @property
    def default_generator(self) -> torch.Generator:
        """What kernels draw from that take no generator."""
        ...

    def allow_tf32(self, allowed: bool) -> None:
        """Let the functions that are called from now on, in any thread, shorten float32; or not."""
        ...

    def new_stream(self) -> Stream:
        """Return a stream of its own."""
        ...

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Give the calling thread's kernels and allocations to a stream."""
        ...

    def record(self, stream: Stream, *, timed: bool = False) -> Event:
        """Return an event that comes when all that was given to the stream has ended.

        timed: it can be asked for its time, too.
        """
        ...

    def wait(self, stream: Stream, event: Event) -> None:
        """Have all that the stream is given from now on begin after the event."""
        ...

    def synchronize(self, event: Event) -> None:
        """Block the calling thread until the event has come."""
        ...

    def has_come(self, event: Event) -> bool:
        """Whether the event has come, without waiting for it."""
        ...

    def elapsed_ns(self, begin: Event, end: Event) -> int:
        """Return the time between two timed events, which have come."""
        ...

    def hold_back(self, stream: Stream, duration_ns: int) -> None:
        """Give the stream something to do that takes about so long and touches no memory."""
        ...

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Return memory for the calling thread's stream.

        It goes when nobody holds it any more, and may serve again at once what that stream is given later.
        """
        ...

    def take_library_workspaces(self) -> None:
        """Have libraries take what memory they keep for the calling thread's stream."""
        ...

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Return host memory (uint8) that copies of this device need not wait for."""
        ...

    def copy(self, stream: Stream, source: torch.UntypedStorage, target: torch.UntypedStorage) -> None:
        """Give a copy between device and pinned host memory to a stream."""
        ...

    def upload(self, stream: Stream, source: np.ndarray | torch.Tensor, target: torch.Tensor) -> None:
        """Give a copy of a host array to a stream; the array may change as soon as this returns."""
        ...

    def download(self, stream: Stream, source: torch.Tensor) -> torch.Tensor:
        """Give a copy to the host to a stream, and return where it will be when that has run."""
        ...

    def open_tape(self) -> Tape:
        """Return an empty tape.  Raises NotRecorded."""
        ...

    def memory_nbytes(self) -> tuple[int, int]:
        """Return the device's memory that is free, and all of it."""
        ...

    def watch_memory(self) -> int:
        """Return the bytes that anybody asked for and holds, and measure their peak from now on."""
        ...

    def peak_nbytes(self) -> int:
        """Return the most that was held so since watch_memory."""
        ...

    def utilization(self) -> float:
        """Return the share of the device's time in which kernels ran of late, 0 to 1."""
        ...

    def others_nbytes(self) -> int | None:
        """Return what other processes hold of the device's memory; None where that cannot be told."""
        ...

    def trim(self) -> None:
        """Give free device memory that is kept for speed back to the driver."""
        ...
