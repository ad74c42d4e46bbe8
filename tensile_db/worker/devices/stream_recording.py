"""A recording (recording.py) of an asynchronous device: work is taken down on streams of its own.

Other jobs go on giving work to the device's streams meanwhile; what they give there must not get onto the
tape.  So a recording is taken down on three streams that nobody else uses, and replayed on the device's.

Two recordings never use the same streams while both are there: cuBLAS's workspaces belong to streams, and
PyTorch drops those of a graph's stream with the graph, though another one taken down there needs them still.

Source: pytorch#193402 (workspaces dropped with a graph that shared its stream).
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from tensile_db.worker.devices.recording import NotRecorded
from tensile_db.worker.devices.runtime import Passage, Runtime, Stream, Tape
from tensile_db.worker.devices.stream_copy import StreamCopy
from tensile_db.worker.devices.under_way import Fetched
from tensile_db.worker.messages import JobId

#: Recordings at a time.  PyTorch has 32 streams of a kind and then begins anew, and a device has three
#: already; what is more is done op by op.
MOST_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class RecordingStreams:
    """Where one recording is taken down."""

    compute: Stream
    to_host: Stream
    to_device: Stream


@dataclass(slots=True)
class StreamsForRecordings:
    """The streams of a device's recordings, used again and again.  Safe for many threads."""

    runtime: Runtime
    duplex: bool
    _made: int = field(default=0, init=False)
    _free: list[RecordingStreams] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def acquire(self) -> RecordingStreams:
        """Return streams that no recording uses.  Raises NotRecorded."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self._made == MOST_AT_ONCE:
                raise NotRecorded(f"{MOST_AT_ONCE} recordings are held on the device already")
            self._made += 1
            compute, to_host = self.runtime.new_stream(), self.runtime.new_stream()
            to_device = self.runtime.new_stream() if self.duplex else to_host
            return RecordingStreams(compute, to_host, to_device)

    def release(self, streams: RecordingStreams) -> None:
        """Take them back."""
        with self._lock:
            self._free.append(streams)


class RecordedCopy(StreamCopy):
    """A copy that was taken down."""

    def cancel(self) -> None:
        """Do nothing: it has never begun."""


class StreamRecording:
    """A `Recording` on a runtime's tape."""

    def __init__(self, runtime: Runtime, streams: StreamsForRecordings, replay_on: Stream) -> None:
        """replay_on: the device's compute stream.  Raises NotRecorded."""
        self.torch_device = runtime.torch_device
        self._runtime = runtime
        self._kept_streams = streams
        self._replay_on = replay_on
        self._tape: Tape = runtime.open_tape()
        try:
            self._streams = streams.acquire()
        except NotRecorded:
            self._tape.close()
            raise
        self._outside: ExitStack | None = None
        self._in_passage = False

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

    def at(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the same memory without holding it."""
        return self._tape.at(storage)

    def replay(self, passage: Passage, job_generator: torch.Generator | None) -> None:
        """Give the passage to the device's compute stream."""
        if job_generator is None:
            self._tape.replay(passage, self._replay_on)
            return
        own = self._tape.generator
        own.set_state(job_generator.get_state())
        self._tape.replay(passage, self._replay_on)
        job_generator.set_state(own.get_state())

    def close(self) -> None:
        """Wait for the device's kernels, and give memory and streams back."""
        self._runtime.synchronize(self._runtime.record(self._replay_on))
        self._tape.close()
        self._kept_streams.release(self._streams)

    def _enter_allocating(self) -> None:
        self._outside = ExitStack()
        self._outside.enter_context(self._tape.allocating())

    def _leave_allocating(self) -> None:
        outside, self._outside = self._outside, None
        if outside is not None:
            outside.close()
