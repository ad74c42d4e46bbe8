"""A Runtime on the CPU that does nothing before it must, and forgives nothing.

Work given to a stream waits there.  It runs when somebody waits for an event, in an order that streams and
events allow, and a schedule chooses which: whoever relies on anything but events is found out.  Memory that
is let go of is handed out again at once, and, in its stream's order, is overwritten with NaN; kernels hold
addresses, not storages, as a GPU's do.
"""

import ctypes
import threading
import weakref
from collections import defaultdict, deque
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random

import numpy as np
import torch

from tensile_db.capture.networks.randomness import DEFAULT_GENERATOR_LOCK
from tensile_db.worker.devices.host_memory import new_storage
from tests.late.tape import CAPTURING, LateTape

#: As float32 and float64 a NaN, as an integer -1.
POISON = 0xFF

SCHEDULES = ("lazy", "kernels first", "copies first", "random 1", "random 2")


@dataclass(eq=False)
class LateEvent:
    """Comes when its stream has come to it."""

    stream: "LateStream"
    timed: bool
    at_ns: int | None = None


@dataclass(eq=False)
class LateStream:
    """What is still to be done, in order."""

    items: deque = field(default_factory=deque)
    copies_only: bool = True


@dataclass(eq=False)
class Item:
    """A piece of work, or the wait for an event."""

    run: object = None
    event: LateEvent | None = None


class LateRuntime:
    """A Runtime (tensile_db/worker/devices/runtime.py) that puts everything off."""

    def __init__(
        self, schedule="lazy", *, memory_nbytes=1 << 34, tape_granule=1, workspace=lambda call, nbytes: 0
    ):
        """workspace: what kernels take beyond, of a call and the bytes of its results."""
        self.torch_device = torch.device("cpu")
        self.default_generator = torch.default_generator
        self.schedule = schedule
        #: As it is while a function is called; None: as PyTorch has it.
        self.tf32 = None
        #: How long streams were kept busy.
        self.held_back_ns = []
        #: Calls that made the host wait.
        self.host_waits = 0
        self.workspace = workspace
        #: Asked for by anybody and held, but for tapes'; and the most of that since watch_memory.
        self.held_nbytes = 0
        self.most_held_nbytes = 0
        #: More cannot be held.
        self.capacity_nbytes = 1 << 62
        #: The most that was ever held; to be set anew by whoever looks.
        self.peak_held_nbytes = 0
        #: What libraries keep for each tape.
        self.libraries_nbytes = 0
        #: Items carried out.
        self.done = 0
        #: What every call that has to do with events answers, of a device that is lost.
        self.lost = None
        self._is_running = False
        self._random = Random(schedule)
        # Two locks would be taken in either order, by kernels that draw and by those who launch them.
        self._lock = DEFAULT_GENERATOR_LOCK
        #: The calling thread's stream, tape to allocate from, and passage to take down.
        self.current = threading.local()
        #: Tapes that hold memory.
        self.open_tapes = []
        self.make_tape = lambda: LateTape(self, tape_granule)
        self._streams = []
        self._free = defaultdict(list)
        #: Device memory by address; never given back.
        self._chunks = {}
        self._memory_nbytes = memory_nbytes

    def allow_tf32(self, allowed):
        self.tf32 = allowed

    def new_stream(self):
        self._streams.append(LateStream())
        return self._streams[-1]

    @contextmanager
    def on(self, stream):
        before = getattr(self.current, "stream", None)
        self.current.stream = stream
        try:
            yield
        finally:
            self.current.stream = before

    def record(self, stream, *, timed=False):
        self._refuse_if_lost()
        event = LateEvent(stream, timed)
        passage = self._passage()
        if passage is not None:
            assert not timed, CAPTURING
            passage.entries.append((stream, event, None, None))
            return event
        self._record(stream, event)
        return event

    def _record(self, stream, event):
        def come():
            event.at_ns = 1000 * self.done

        self._give(stream, Item(come))

    def wait(self, stream, event):
        self._refuse_if_lost()
        passage = self._passage()
        if passage is not None:
            assert any(recorded is event for _, recorded, _, _ in passage.entries), "uncaptured work"
            passage.entries.append((stream, None, event, None))
            return
        self._give(stream, Item(event=event))

    def synchronize(self, event):
        self._refuse_if_lost()
        self._refuse_in_passage()
        self.host_waits += 1
        with self._lock, torch.inference_mode():
            self._force(event)

    def has_come(self, event):
        self._refuse_if_lost()
        self._refuse_in_passage()
        return event.at_ns is not None

    def elapsed_ns(self, begin, end):
        assert begin.timed, "a GPU's event tells its time only if it was made to"
        assert end.timed
        assert begin.at_ns is not None, "a GPU's events refuse to be asked early"
        assert end.at_ns is not None
        return end.at_ns - begin.at_ns

    def hold_back(self, stream, duration_ns):
        self._refuse_in_passage()
        self.held_back_ns.append(duration_ns)
        self._give(stream, Item(lambda: None))

    def allocate(self, nbytes):
        stream = self._stream()
        if nbytes == 0:
            return new_storage(0)
        tape = getattr(self.current, "tape", None)
        with self._lock:
            if tape is not None:
                chunk = tape.allocate(nbytes, _new_chunk)
            else:
                free = self._free[stream, nbytes]
                if self.held_nbytes + nbytes > self.capacity_nbytes:
                    raise torch.OutOfMemoryError("none left")
                chunk = free.pop() if free else _new_chunk(nbytes)
                self.held_nbytes += nbytes
                self.most_held_nbytes = max(self.most_held_nbytes, self.held_nbytes)
                self.peak_held_nbytes = max(self.peak_held_nbytes, self.held_nbytes)
            self._chunks[chunk.ctypes.data] = chunk
        # The storage holds this view of the memory, and lets it go when nobody on the host holds the storage.
        window = chunk[:]
        let_go = (self._let_go, stream, chunk) if tape is None else (tape.let_go, chunk)
        weakref.finalize(window, *let_go).atexit = False
        return torch.frombuffer(window, dtype=torch.uint8).untyped_storage()

    def at(self, storage):
        """Return the same memory; what is made of it lets nothing go."""
        chunk = self._chunks.get(storage.data_ptr())
        return storage if chunk is None else torch.frombuffer(chunk[:], dtype=torch.uint8).untyped_storage()

    def open_tape(self):
        self.open_tapes.append(self.make_tape())
        return self.open_tapes[-1]

    def give_again(self, passage, stream):
        """Give streams what a passage has taken down; its main stream's to `stream`."""
        self._refuse_in_passage()
        events = {}
        for where, recorded, waited, make in passage.entries:
            to = stream if where is passage.main else where
            if recorded is not None:
                events[recorded] = LateEvent(to, timed=False)
                self._record(to, events[recorded])
            elif waited is not None:
                self._give(to, Item(event=events[waited]))
            else:
                self._give(to, Item(make()))

    def _refuse_if_lost(self):
        if self.lost is not None:
            raise self.lost

    def _passage(self):
        return getattr(self.current, "passage", None)

    def _refuse_in_passage(self):
        if self._passage() is not None:
            raise torch.AcceleratorError(CAPTURING)

    def _let_go(self, stream, chunk):
        with self._lock:
            self.held_nbytes -= chunk.nbytes
            self._give(stream, Item(lambda: chunk.fill(POISON)))
            self._free[stream, chunk.nbytes].append(chunk)

    def take_library_workspaces(self):
        """Have a tape hold what libraries keep."""
        if self.libraries_nbytes and not self.current.tape.kept:
            self.current.tape.kept.append(self.allocate(self.libraries_nbytes))

    def pinned(self, nbytes):
        self._refuse_in_passage()
        return torch.full((nbytes,), POISON, dtype=torch.uint8)

    def copy(self, stream, source, target):
        begin, end, nbytes = source.data_ptr(), target.data_ptr(), source.nbytes()
        self._work(stream, lambda: lambda: ctypes.memmove(end, begin, nbytes))

    def upload(self, stream, source, target):
        self._refuse_in_passage()
        # Its dtype is to be the target's.
        staged = torch.from_numpy(source.copy()) if isinstance(source, np.ndarray) else source.clone()
        assert staged.dtype == target.dtype
        self._launch_on(stream, lambda: lambda to: to.copy_(staged), target)

    def download(self, stream, source):
        self._refuse_in_passage()
        host = torch.full(source.shape, POISON, dtype=torch.uint8).to(source.dtype)
        self._launch_on(stream, lambda: host.copy_, source)
        return host

    def watch_memory(self):
        with self._lock:
            self.most_held_nbytes = self.held_nbytes
            return self.held_nbytes

    def peak_nbytes(self):
        return self.most_held_nbytes

    def memory_nbytes(self):
        return self._memory_nbytes, self._memory_nbytes

    def utilization(self):
        return 0.0

    def others_nbytes(self):
        return None

    def trim(self):
        pass

    def launch(self, kernel, *tensors):
        """Have a kernel run later on the calling thread's stream, with tensors at these addresses."""
        self.launch_made(lambda: kernel, *tensors)

    def launch_made(self, make, *tensors):
        """Have a kernel run later that is made when it is handed over: now, or in every replay."""
        self._stream().copies_only = False
        self._launch_on(self._stream(), make, *tensors)

    def _launch_on(self, stream, make, *tensors):
        where = [self.address(tensor) for tensor in tensors]

        def made():
            kernel = make()
            return lambda: kernel(*(at() for at in where))

        self._work(stream, made)

    def _work(self, stream, make):
        passage = self._passage()
        if passage is not None:
            passage.entries.append((stream, None, None, make))
        else:
            self._give(stream, Item(make()))

    def address(self, tensor):
        """Return what makes the tensor again, without holding its memory."""
        held = tensor.untyped_storage()
        chunk = self._chunks.get(held.data_ptr())
        # Of another size: others have the address by now, and the tensor is of `at`, which holds nothing.
        if chunk is None or chunk.nbytes != held.nbytes():
            return lambda: tensor
        dtype, size, stride, offset = tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()

        def made():
            storage = torch.frombuffer(chunk, dtype=torch.uint8).untyped_storage()
            return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)

        return made

    def _stream(self):
        stream = getattr(self.current, "stream", None)
        assert stream is not None, "a kernel or an allocation outside of `computing` has another stream"
        return stream

    def _give(self, stream, item):
        with self._lock, torch.inference_mode():
            stream.items.append(item)
            if self._is_running:
                # A garbage collection within an item lets go of memory: nothing begins until the item ends.
                return
            match self.schedule.split()[0]:
                case "kernels":
                    self._run_ready([each for each in self._streams if not each.copies_only])
                case "copies" if stream.copies_only:
                    while stream.items:
                        self._advance(stream)
                case "random":
                    for _ in range(self._random.randrange(4)):
                        self._run_ready([self._random.choice(self._streams)], most=self._random.randrange(4))

    def _run_ready(self, streams, most=1 << 60):
        for stream in streams:
            while most and stream.items and self._is_ready(stream.items[0]):
                self._advance(stream)
                most -= 1

    def _is_ready(self, item):
        return item.event is None or item.event.at_ns is not None

    def _force(self, event):
        while event.at_ns is None:
            self._advance(event.stream)

    def _advance(self, stream):
        """Carry out the stream's next item, after what it waits for."""
        item = stream.items[0]
        if item.event is not None:
            self._force(item.event)
        # What it waited for may have come to this very item.
        if stream.items and stream.items[0] is item:
            was_running, self._is_running = self._is_running, True
            try:
                stream.items.popleft()
                self.done += 1
                if item.run is not None:
                    item.run()
            finally:
                self._is_running = was_running


def _new_chunk(nbytes):
    return np.full(nbytes, POISON, np.uint8)
