"""How fast an asynchronous device and its link are, measured as a worker starts; takes about a second.

Source: Williams, Waterman, Patterson: Roofline (2009); NVIDIA's nvbandwidth for how to measure a link.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median, median_low

import torch

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.runtime import Runtime

#: Large enough that starting a copy takes no part of it; less where memory is scarce.
_COPY_NBYTES = 256 * 2**20
_COPY_PART = 64
_SIDE = 4096
_RUNS = 5
_LAUNCHES = 300
#: Few enough for a GPU's queue; while they are handed over it is kept busy.
_MARKS, _MARKS_HELD_BACK_NS = 200, 5_000_000
#: More is not the mark's, but somebody else's at work on the device.
_MOST_OF_A_MARK_NS = 5_000
#: A link whose directions together carry less than this many times one direction serves them in turns.
_DUPLEX_GAIN = 1.25


def measure(runtime: Runtime, *, name: str, memory_nbytes: int, side: int = _SIDE) -> DeviceSpec:
    """Return what the planner is to know; memory_nbytes: what jobs may hold; side: of the matrices."""
    meter = _Meter(runtime)
    with torch.inference_mode():
        one_way = meter.copies(out=True, back=False), meter.copies(out=False, back=True)
        both = meter.copies(out=True, back=True)
        out_ns, in_ns, duplex = _link(*one_way, both)
        return DeviceSpec(
            name=name,
            memory_nbytes=memory_nbytes,
            d2h_bytes_per_s=meter.nbytes * 1_000_000_000 // out_ns,
            h2d_bytes_per_s=meter.nbytes * 1_000_000_000 // in_ns,
            duplex=duplex,
            flops_per_s=2 * side**3 * 1_000_000_000 // meter.matrix_product_ns(side),
            memory_bytes_per_s=2 * meter.nbytes * 1_000_000_000 // meter.device_copy_ns(),
            op_overhead_ns=meter.launch_ns(),
        )


def measure_mark_ns(runtime: Runtime) -> int:
    """Return what a mark takes of the device's time between its neighbours, where nothing else is done.

    0 where that could not be told, for something else was done.
    """
    stream = runtime.new_stream()
    # Else it would wait for the host to hand over the next one.
    runtime.hold_back(stream, _MARKS_HELD_BACK_NS)
    marks = [runtime.record(stream, timed=True) for _ in range(1 + _MARKS)]
    runtime.synchronize(marks[-1])
    mark_ns = median_low(runtime.elapsed_ns(*pair) for pair in pairwise(marks))
    return mark_ns if mark_ns <= _MOST_OF_A_MARK_NS else 0


def _link(out_ns: int, in_ns: int, both_ns: int) -> tuple[int, int, bool]:
    """Return the time of a copy each way, and whether both ways work at once."""
    # Two equal copies at once against the same two in turns.
    duplex = (out_ns + in_ns) > _DUPLEX_GAIN * both_ns
    if duplex:
        # Each direction as it is while the other is busy, too: what a plan can count on.
        out_ns, in_ns = max(out_ns, both_ns), max(in_ns, both_ns)
    return out_ns, in_ns, duplex


class _Meter:
    """Times pieces of work on streams of its own."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        free_nbytes, _ = runtime.memory_nbytes()
        self.nbytes = max(2**20, min(_COPY_NBYTES, free_nbytes // _COPY_PART))
        self._main, self._other = runtime.new_stream(), runtime.new_stream()
        with runtime.on(self._main):
            self._on_device = [runtime.allocate(self.nbytes) for _ in range(2)]
        self._on_host = [runtime.pinned(self.nbytes).untyped_storage() for _ in range(2)]

    def copies(self, *, out: bool, back: bool) -> int:
        """Return how long a copy out and one in, or both at once, take."""

        def work() -> None:
            if back:
                # Where both run, they begin together.
                self._runtime.wait(self._other, self._runtime.record(self._main))
                self._runtime.copy(self._other, self._on_host[1], self._on_device[1])
            if out:
                self._runtime.copy(self._main, self._on_device[0], self._on_host[0])
            if back:
                self._runtime.wait(self._main, self._runtime.record(self._other))

        return self._typical_ns(work)

    def matrix_product_ns(self, side: int) -> int:
        """Return how long a product of square float32 matrices takes."""
        where = self._runtime.torch_device
        with self._runtime.on(self._main):
            left, right = torch.randn(side, side, device=where), torch.randn(side, side, device=where)
            product = torch.empty_like(left)
        return self._typical_ns(lambda: torch.mm(left, right, out=product))

    def device_copy_ns(self) -> int:
        """Return how long the device takes to read and write `nbytes` of its own memory."""
        source, target = (
            torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            for storage in self._on_device
        )
        return self._typical_ns(lambda: target.copy_(source))

    def launch_ns(self) -> int:
        """Return what one of many small kernels in a row takes, the host's part in it."""
        with self._runtime.on(self._main):
            scalar = torch.zeros(1, device=self._runtime.torch_device)

            def launch() -> None:
                for _ in range(_LAUNCHES):
                    scalar.neg_()

            launch()
            begin_ns = time.perf_counter_ns()
            launch()
            self._runtime.synchronize(self._runtime.record(self._main))
        return max(1, (time.perf_counter_ns() - begin_ns) // _LAUNCHES)

    def _typical_ns(self, work: Callable[[], object]) -> int:
        times_ns = []
        for _ in range(1 + _RUNS):
            with self._runtime.on(self._main):
                begin = self._runtime.record(self._main, timed=True)
                work()
                end = self._runtime.record(self._main, timed=True)
            self._runtime.synchronize(end)
            times_ns.append(self._runtime.elapsed_ns(begin, end))
        # The first one warms up.
        return max(1, round(median(times_ns[1:])))
