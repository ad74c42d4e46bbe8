"""A device whose kernels and copies run behind the host's back: one compute stream, one stream a direction.

All jobs' kernels go to one compute stream.  Memory that one job lets go of may then serve the next kernel of
any job at once, as the accounts have it: there is one order in which everything happens.  Were there a stream
or a memory pool for each job, what a job has let go of would stay its own until its pool is emptied, which
stops the device; in turns on one device, jobs live off each other's memory.  Iterations that are replayed
have memory and streams of their own (stream_recording.py), and so run beside others.

Every hand-over between streams is an event; nothing here blocks the host but `finish`, of the device and of a
copy, `elapsed_ns` and `Fetched.get`.

Source: TENSILE section III-D; CUDA C++ Programming Guide, "Asynchronous Concurrent Execution".
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.accounts import DeviceMemory
from tensile_db.worker.devices.device import Mark
from tensile_db.worker.devices.driver_errors import is_of_its_call
from tensile_db.worker.devices.float32_mode import Float32Mode, may_shorten
from tensile_db.worker.devices.host_memory import HostPool
from tensile_db.worker.devices.recording import NotRecorded
from tensile_db.worker.devices.runtime import Event, Runtime
from tensile_db.worker.devices.slab import Slab
from tensile_db.worker.devices.stream_copy import StreamCopy
from tensile_db.worker.devices.stream_recording import StreamRecording, StreamSet, StreamsForRecordings
from tensile_db.worker.messages import JobId


class StreamFetched:
    """A value that is on its way to the host."""

    def __init__(self, runtime: Runtime, value: torch.Tensor, there: Event) -> None:
        self._runtime = runtime
        self._value = value
        self._there = there

    def get(self) -> torch.Tensor:
        """Wait for it; the buffer that it came in is free for others then."""
        self._runtime.synchronize(self._there)
        return self._value.clone()


class AsynchronousDevice:
    """A `Device` (device.py) on a `Runtime`."""

    def __init__(self, runtime: Runtime, spec: DeviceSpec, *, host_nbytes: int, mark_ns: int = 0) -> None:
        """spec: as measured, with the memory that jobs may hold; host_nbytes: of the host, for swaps.

        mark_ns: what a mark takes of a stream's time (`stream_rates.measure_mark_ns`).
        """
        self.spec = spec
        self.mark_ns = mark_ns
        self.torch_device = runtime.torch_device
        self.memory = DeviceMemory(spec.memory_nbytes)
        self._runtime = runtime
        self._slab = Slab(host_nbytes, runtime.pinned)
        self.host = HostPool(self._slab.allocate, self._slab.free)
        self._float32 = Float32Mode(runtime.allow_tf32)
        self._watched_from_nbytes = 0
        self._streams = StreamSet.of(runtime, duplex=spec.duplex)
        #: The streams that a thread uses in their place.
        self._instead = threading.local()
        self._recording_streams = StreamsForRecordings(runtime, spec.duplex)

    @property
    def default_generator(self) -> torch.Generator:
        """The runtime's; it may be made with the first kernel only."""
        return self._runtime.default_generator

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Give the calling thread's kernels to the compute stream and leave autograd out."""
        with self._runtime.on(self._streams.compute), torch.inference_mode():
            yield

    @property
    def _current(self) -> StreamSet:
        """The device's streams, or what the calling thread uses in their place."""
        return getattr(self._instead, "streams", self._streams)

    @contextmanager
    def _on(self, streams: StreamSet) -> Iterator[None]:
        """Have the calling thread use streams in the place of the device's."""
        assert self._current is self._streams, "a replay within a replay"
        self._instead.streams = streams
        try:
            with self._runtime.on(streams.compute):
                yield
        finally:
            del self._instead.streams

    def in_float32(self, function: Callable[..., Any], *, tf32: bool) -> Callable[..., Any]:
        """Return the function, called under a lock where it may look at the process' setting."""
        return self._float32.bound(function, tf32=tf32) if may_shorten(function) else function

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Return memory for the compute stream, not cleared."""
        with self._runtime.on(self._streams.compute):
            return self._runtime.allocate(nbytes)

    def copy_out(
        self,
        job: JobId,
        source: torch.UntypedStorage,
        target: torch.UntypedStorage,
        delta_ns: int,
        after: Mark | None = None,
    ) -> StreamCopy:
        """Hand over a copy to the host.

        It starts when its channel is free: a stream can wait for an event, and not for a time.
        """
        streams = self._current
        return StreamCopy(self._runtime, streams.compute, streams.to_host, source, target, after)

    def copy_in(
        self,
        job: JobId,
        source: torch.UntypedStorage,
        target: torch.UntypedStorage,
        delta_ns: int,
        after: Mark | None = None,
    ) -> StreamCopy:
        """Hand over a copy to the device, as copy_out."""
        streams = self._current
        return StreamCopy(self._runtime, streams.compute, streams.to_device, source, target, after)

    def fill(self, target: torch.Tensor, source: np.ndarray | torch.Tensor) -> None:
        """Hand over a batch's copy; it comes between kernels, the first of which needs it at once."""
        self._runtime.upload(self._current.compute, source, target)

    def fetch(self, source: torch.Tensor) -> StreamFetched:
        """Hand over a copy between kernels, so that the tensor may go right after."""
        value = self._runtime.download(self._current.compute, source)
        return StreamFetched(self._runtime, value, self._runtime.record(self._current.compute))

    def record(self) -> Mark:
        """Return a mark that comes when the kernels before it have ended."""
        return self._runtime.record(self._current.compute, timed=True)

    def elapsed_ns(self, begin: Mark, end: Mark) -> int:
        """Wait for both marks, and return the time between them."""
        self._runtime.synchronize(begin)
        self._runtime.synchronize(end)
        return self._runtime.elapsed_ns(begin, end)

    def hold_back(self, duration_ns: int) -> None:
        """Keep the compute stream busy for so long."""
        self._runtime.hold_back(self._current.compute, duration_ns)

    @property
    def can_record(self) -> bool:
        """Return whether it was opened for that."""
        return self.spec.replays

    def open_recording(self) -> StreamRecording:
        """Return an empty recording."""
        if not self.can_record:
            raise NotRecorded("the worker runs without replay")
        return StreamRecording(self._runtime, self._recording_streams, self._streams.compute, self._on)

    @property
    def watches_memory(self) -> bool:
        """Return True: kernels' workspaces come from the allocator that tensors come from."""
        return True

    def watch_memory(self) -> None:
        """Begin to watch the allocator, which hands out as kernels are handed over, not as they run."""
        self._watched_from_nbytes = self._runtime.watch_memory()

    def watched_nbytes(self) -> int:
        """Return the most that was held at once since, beyond what was held then."""
        return self._runtime.peak_nbytes() - self._watched_from_nbytes

    def finish(self) -> None:
        """Wait for all kernels but other threads' replays, and for the copies that they come after."""
        self._runtime.synchronize(self._runtime.record(self._current.compute))

    def find_loss(self) -> Exception | None:
        """Return what waiting for the calling thread's kernels fails with, unless that tells nothing.

        An error that stays is returned by every call; an event is the least that can be asked for.
        """
        try:
            self.finish()
        except RuntimeError as error:
            # Without memory for an event, the device has answered all the same.
            return None if is_of_its_call(error) else error
        return None

    def utilization(self) -> float:
        """Return the share of the device's time in which kernels ran of late, 0 to 1."""
        return self._runtime.utilization()

    def others_nbytes(self) -> int | None:
        """Return what other processes hold of the device's memory; None where that cannot be told."""
        return self._runtime.others_nbytes()

    def trim(self) -> None:
        """Let the host's buffers be used in other sizes and, when no job holds memory, free the device's."""
        self.host.trim()
        if self.memory.used_nbytes == 0:
            self.finish()
            self._runtime.trim()

    def close(self) -> None:
        """Wait for what is under way and let the host's memory go."""
        for stream in (self._streams.compute, self._streams.to_host, self._streams.to_device):
            self._runtime.synchronize(self._runtime.record(stream))
        self.trim()
        self._slab.close()
