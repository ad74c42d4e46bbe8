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
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np
import torch

from tensile_db.capture.randomness import DEFAULT_GENERATOR_LOCK
from tensile_db.worker.devices.host_memory import new_storage
from tensile_db.worker.execution.job_memory import view_of

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

    def __init__(self, schedule="lazy", *, memory_nbytes=1 << 34):
        self.torch_device = torch.device("cpu")
        self.default_generator = torch.default_generator
        self.schedule = schedule
        #: As it is while a function is called; None: as PyTorch has it.
        self.tf32 = None
        #: Calls that made the host wait.
        self.host_waits = 0
        #: Handed out since watch_memory; what was let go of meanwhile is counted, too.
        self.watched_nbytes = 0
        #: Items carried out.
        self.done = 0
        self._random = Random(schedule)
        # Two locks would be taken in either order, by kernels that draw and by those who launch them.
        self._lock = DEFAULT_GENERATOR_LOCK
        self._current = threading.local()
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
        before = getattr(self._current, "stream", None)
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def record(self, stream, *, timed=False):
        event = LateEvent(stream, timed)

        def come():
            event.at_ns = 1000 * self.done

        self._give(stream, Item(come))
        return event

    def wait(self, stream, event):
        self._give(stream, Item(event=event))

    def synchronize(self, event):
        self.host_waits += 1
        with self._lock, torch.inference_mode():
            self._force(event)

    def elapsed_ns(self, begin, end):
        assert begin.timed, "a GPU's event tells its time only if it was made to"
        assert end.timed
        assert begin.at_ns is not None, "a GPU's events refuse to be asked early"
        assert end.at_ns is not None
        return end.at_ns - begin.at_ns

    def allocate(self, nbytes):
        stream = self._stream()
        self.watched_nbytes += nbytes
        if nbytes == 0:
            return new_storage(0)
        with self._lock:
            free = self._free[stream, nbytes]
            chunk = free.pop() if free else np.full(nbytes, POISON, np.uint8)
            self._chunks[chunk.ctypes.data] = chunk
        # The storage holds this view of the memory, and lets it go when nobody on the host holds the storage.
        window = chunk[:]
        weakref.finalize(window, self._let_go, stream, chunk).atexit = False
        return torch.frombuffer(window, dtype=torch.uint8).untyped_storage()

    def _let_go(self, stream, chunk):
        with self._lock:
            self._give(stream, Item(lambda: chunk.fill(POISON)))
            self._free[stream, chunk.nbytes].append(chunk)

    def pinned(self, nbytes):
        return torch.full((nbytes,), POISON, dtype=torch.uint8)

    def copy(self, stream, source, target):
        begin, end, nbytes = source.data_ptr(), target.data_ptr(), source.nbytes()
        self._give(stream, Item(lambda: ctypes.memmove(end, begin, nbytes)))

    def upload(self, stream, source, target):
        # Its dtype is to be the target's.
        staged = torch.from_numpy(source.copy()) if isinstance(source, np.ndarray) else source.clone()
        assert staged.dtype == target.dtype
        self._launch_on(stream, lambda to: to.copy_(staged), target)

    def download(self, stream, source):
        host = torch.full(source.shape, POISON, dtype=torch.uint8).to(source.dtype)
        self._launch_on(stream, host.copy_, source)
        return host

    def watch_memory(self):
        self.watched_nbytes = 0
        return 0

    def peak_nbytes(self):
        return self.watched_nbytes

    def memory_nbytes(self):
        return self._memory_nbytes, self._memory_nbytes

    def utilization(self):
        return 0.0

    def trim(self):
        pass

    def launch(self, kernel, *tensors):
        """Have a kernel run later on the calling thread's stream, with tensors at these addresses."""
        self._stream().copies_only = False
        self._launch_on(self._stream(), kernel, *tensors)

    def _launch_on(self, stream, kernel, *tensors):
        where = [self.address(tensor) for tensor in tensors]
        self._give(stream, Item(lambda: kernel(*(at() for at in where))))

    def address(self, tensor):
        """Return what makes the tensor again, without holding its memory."""
        chunk = self._chunks.get(tensor.untyped_storage().data_ptr())
        if chunk is None:
            return lambda: tensor
        dtype, size, stride, offset = tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()

        def made():
            storage = torch.frombuffer(chunk, dtype=torch.uint8).untyped_storage()
            return torch.empty(0, dtype=dtype).set_(storage, offset, size, stride)

        return made

    def _stream(self):
        stream = getattr(self._current, "stream", None)
        assert stream is not None, "a kernel or an allocation outside of `computing` has another stream"
        return stream

    def _give(self, stream, item):
        with self._lock, torch.inference_mode():
            stream.items.append(item)
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
            stream.items.popleft()
            self.done += 1
            if item.run is not None:
                item.run()


def late_step(step, runtime):
    """Return the step with kernels that run later on the runtime."""
    calls = [
        call if call.function is None else replace(call, function=_late(step.graph, call, runtime))
        for call in step.calls
    ]
    return replace(step, calls=tuple(calls))


def _late(graph, call, runtime):
    function = call.function

    def enqueue(*args, **kwargs):
        made = [
            None if view is None else view_of(runtime.allocate(graph.tensors[view.tensor].nbytes), view)
            for view in call.outputs
        ]
        tensors = [each for each in _leaves([*args, *kwargs.values()]) if isinstance(each, torch.Tensor)]
        run = _drawing_now(function, call, args, kwargs)

        def kernel(*there):
            inputs, outputs = iter(there[: len(tensors)]), iter(there[len(tensors) :])
            results = run(
                *_filled(args, inputs), **dict(zip(kwargs, _filled(kwargs.values(), inputs), strict=True))
            )
            results = [results] if isinstance(results, torch.Tensor) or results is None else results
            for view, result in zip(call.outputs, results, strict=False):
                if view is not None:
                    next(outputs).copy_(result)

        runtime.launch(kernel, *tensors, *[each for each in made if each is not None])
        return made[0] if len(made) == 1 else made

    return enqueue


def _drawing_now(function, call, args, kwargs):
    """Return the function drawing what is its own at this moment, as a GPU's kernels do when launched."""
    drawn_from = [each for each in _leaves([*args, *kwargs.values()]) if isinstance(each, torch.Generator)]
    if call.draws_from_default_generator:
        state = torch.default_generator.get_state()
        function(*_zeros(args), **dict(zip(kwargs, _zeros(kwargs.values()), strict=True)))

        def draw(*there, **named):
            # The runtime's lock is held, which is this generator's.
            others = torch.default_generator.get_state()
            torch.default_generator.set_state(state)
            try:
                return function(*there, **named)
            finally:
                torch.default_generator.set_state(others)

        return draw
    if not drawn_from:
        return function
    (generator,) = drawn_from
    own = torch.Generator()
    own.set_state(generator.get_state())
    function(*_zeros(args), **dict(zip(kwargs, _zeros(kwargs.values()), strict=True)))

    def draw_own(*there, **named):
        swapped = [own if isinstance(each, torch.Generator) else each for each in there]
        return function(
            *swapped, **{name: own if isinstance(v, torch.Generator) else v for name, v in named.items()}
        )

    return draw_own


def _leaves(values):
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _filled(values, tensors):
    return [
        _filled(value, tensors)
        if isinstance(value, list | tuple)
        else next(tensors)
        if isinstance(value, torch.Tensor)
        else value
        for value in values
    ]


def _zeros(values):
    return [
        _zeros(value)
        if isinstance(value, list | tuple)
        else torch.zeros(value.shape, dtype=value.dtype)
        if isinstance(value, torch.Tensor)
        else value
        for value in values
    ]
