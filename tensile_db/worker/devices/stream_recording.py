"""A recording (recording.py) of an asynchronous device: work is taken down on streams of its own.

Other jobs go on giving work to the device's streams meanwhile; what they give there must not get onto the
tape.  So a recording is taken down on three streams that nobody else uses, and replayed there: its memory is
its own, so that it needs no order with other jobs' kernels and copies, and may run beside them.

Two recordings never use the same streams while both are there: PyTorch keeps cuBLAS's workspaces by thread
and stream, and drops those of a graph's stream with the graph, though another one taken down there needs them
still.

Source: pytorch#193402 (workspaces dropped with a graph that shared its stream).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from tensile_db.scheduler.sharing.headroom import MOST_RECORDINGS
from tensile_db.worker.devices.recording import NotRecorded, NotRecordedNow
from tensile_db.worker.devices.runtime import Passage, Runtime, Stream, Tape
from tensile_db.worker.devices.stream_copy import StreamCopy
from tensile_db.worker.devices.under_way import Fetched
from tensile_db.worker.messages import JobId


@dataclass(frozen=True, slots=True)
class StreamSet:
    """A stream for kernels, and those of their copies: one where the link goes one way at a time."""

    compute: Stream
    to_host: Stream
    to_device: Stream

    @classmethod
    def of(cls, runtime: Runtime, *, duplex: bool) -> "StreamSet":
        """Return streams that nobody else has."""
        compute, to_host = runtime.new_stream(), runtime.new_stream()
        return cls(compute, to_host, runtime.new_stream() if duplex else to_host)


@dataclass(slots=True)
class StreamsForRecordings:
    """The streams of a device's recordings, used again and again.  Safe for many threads."""

    runtime: Runtime
    duplex: bool
    _made: int = field(default=0, init=False)
    _free: list[StreamSet] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def acquire(self) -> StreamSet:
        """Return streams that no recording uses.  Raises NotRecordedNow."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._made == MOST_RECORDINGS:
                raise NotRecordedNow(f"{MOST_RECORDINGS} recordings are held on the device already")
            self._made += 1
            return StreamSet.of(self.runtime, duplex=self.duplex)

    def release(self, streams: StreamSet) -> None:
        """Take them back."""
        with self._lock:
            self._free.append(streams)


class RecordedCopy(StreamCopy):
    """A copy that was taken down."""

    def cancel(self) -> None:
        """Do nothing: it has never begun."""


class StreamRecording:
    """A `Recording` on a runtime's tape."""

    def __init__(
        self,
        runtime: Runtime,
        streams: StreamsForRecordings,
        compute: Stream,
        on: Callable[[StreamSet], AbstractContextManager[None]],
    ) -> None:
        """compute: the device's stream; on: has the calling thread use others in the place of the device's.

        Raises NotRecorded.
        """
        self.torch_device = runtime.torch_device
        self._runtime = runtime
        self._kept_streams = streams
        self._compute = compute
        self._on = on
        self._tape: Tape = runtime.open_tape()
        try:
            self._streams = streams.acquire()
        except NotRecorded:
            self._tape.close()
            raise
        self._outside: ExitStack | None = None
        self._in_passage = False
        self._has_replayed = False

    @property
    def default_generator(self) -> torch.Generator:
        """The tape's: kernels without a generator draw from it while they are taken down."""
        return self._tape.generator

    @property
    def generator(self) -> torch.Generator:
        """The tape's."""
        return self._tape.generator

    @property
    def nbytes(self) -> int:
        """The tape's."""
        return self._tape.nbytes

    @contextmanager
    def taking_down(self) -> Iterator[None]:
        """Give the calling thread's kernels and allocations to the recording, and leave autograd out."""
        with self._runtime.on(self._streams.compute), torch.inference_mode():
            self._enter_allocating()
            try:
                yield
            finally:
                self._leave_allocating()

    @contextmanager
    def passage(self) -> Iterator[Passage]:
        """Take down what is handed over within."""
        # PyTorch refuses to be told twice that a thread allocates from a pool.
        self._leave_allocating()
        self._in_passage = True
        try:
            with self._tape.passage(self._streams.compute) as passage:
                yield passage
        finally:
            self._in_passage = False
            self._enter_allocating()

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Return memory of the tape."""
        assert self._in_passage or self._outside is not None, "allocated outside of taking down"
        return self._runtime.allocate(nbytes)

    def take_library_workspaces(self) -> None:
        """Have it done on the recording's first stream, outside of passages."""
        assert self._outside is not None, "what runs at once is no part of a passage"
        self._runtime.take_library_workspaces()

    def copy_out(
        self, job: JobId, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int
    ) -> RecordedCopy:
        """Take down a copy to the host."""
        return self._copy(self._streams.to_host, source, target)

    def copy_in(
        self, job: JobId, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int
    ) -> RecordedCopy:
        """Take down a copy to the device."""
        return self._copy(self._streams.to_device, source, target)

    def _copy(
        self, channel: Stream, source: torch.UntypedStorage, target: torch.UntypedStorage
    ) -> RecordedCopy:
        assert self._in_passage, "a copy outside of passages is no part of the recording"
        return RecordedCopy(self._runtime, self._streams.compute, channel, source, target)

    def fill(self, target: torch.Tensor, source: np.ndarray | torch.Tensor) -> None:
        """Raise NotRecorded."""
        raise NotRecorded("something is copied from the host that differs each time")

    def fetch(self, source: torch.Tensor) -> Fetched:
        """Raise NotRecorded."""
        raise NotRecorded("the host reads a tensor's value on the way")

    def find_loss(self) -> Exception | None:
        """Return None: waiting for an event would be what fails here."""
        return None

    def at(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the same memory without holding it."""
        return self._tape.at(storage)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Give what the calling thread hands over to the recording's streams."""
        own = self._streams.compute
        self._has_replayed = True
        self._runtime.wait(own, self._runtime.record(self._compute))
        try:
            with self._on(self._streams):
                yield
        finally:
            # Mostly over by then: the host has waited for what is reported.
            self._runtime.wait(self._compute, self._runtime.record(own))

    def replay(self, passage: Passage, job_generator: torch.Generator | None) -> None:
        """Give the passage to the recording's first stream."""
        if job_generator is None:
            self._tape.replay(passage, self._streams.compute)
            return
        own = self._tape.generator
        own.set_state(job_generator.get_state())
        self._tape.replay(passage, self._streams.compute)
        job_generator.set_state(own.get_state())

    def close(self) -> None:
        """Wait for what was replayed, and give memory and streams back."""
        # A stream of which a capture has failed is left alone: nothing was ever done there.
        if self._has_replayed:
            self._runtime.synchronize(self._runtime.record(self._streams.compute))
        self._tape.close()
        self._kept_streams.release(self._streams)

    def _enter_allocating(self) -> None:
        self._outside = ExitStack()
        self._outside.enter_context(self._tape.allocating())

    def _leave_allocating(self) -> None:
        outside, self._outside = self._outside, None
        if outside is not None:
            outside.close()
