"""The CPU as a device: real kernels, an enforced memory capacity, links paced to a stated speed.

Only the speed of a GPU is missing: training, peaks, waits and results are real.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.accounts import DeviceMemory
from tensile_db.worker.devices.channel import Channel, PacedCopy
from tensile_db.worker.devices.cores import NOMINAL, Rates
from tensile_db.worker.devices.heap import give_back_freed_memory, keep_freed_memory
from tensile_db.worker.devices.host_memory import HostPool, new_storage
from tensile_db.worker.devices.recording import NotRecorded, Recording
from tensile_db.worker.messages import JobId

#: Slow enough for a memcpy beside two busy cores, and about as fast beside this device's kernels as PCIe
#: is beside a GPU's.
DEFAULT_LINK_BYTES_PER_S = 2_000_000_000

#: Ops lose so many times what a core takes for a copy: the other cores wait for it, and what it pushes out of
#: the caches is read again.
_COPIES_COST = 3


class CpuFetched:
    """A value that was there when it was asked for."""

    def __init__(self, value: torch.Tensor) -> None:
        self._value = value

    def get(self) -> torch.Tensor:
        """Return it."""
        return self._value


class CpuDevice:
    """A `Device` (device.py) on the machine's own cores."""

    def __init__(
        self,
        *,
        memory_nbytes: int,
        threads: int | None = None,
        d2h_bytes_per_s: int = DEFAULT_LINK_BYTES_PER_S,
        h2d_bytes_per_s: int = DEFAULT_LINK_BYTES_PER_S,
        duplex: bool = True,
        rates: Rates = NOMINAL,
    ) -> None:
        """Open the device; threads: for each job's kernels, default all cores; rates: see cores.py.

        Changes how the whole process keeps freed memory (heap.py).
        """
        keep_freed_memory()
        cores = os.cpu_count() or 1
        self.threads = threads or cores
        self.spec = DeviceSpec(
            name="cpu",
            memory_nbytes=memory_nbytes,
            d2h_bytes_per_s=d2h_bytes_per_s,
            h2d_bytes_per_s=h2d_bytes_per_s,
            duplex=duplex,
            flops_per_s=rates.flops_per_s,
            memory_bytes_per_s=rates.memory_bytes_per_s,
            op_overhead_ns=rates.op_overhead_ns,
            # One job's ops seldom keep all cores busy: small ones run on one, and Python does between them.
            concurrency=cores,
            copies_cost_bytes_per_s=max(1, rates.copying_bytes_per_s // _COPIES_COST),
        )
        self.torch_device = torch.device("cpu")
        self.default_generator = torch.default_generator
        self.memory = DeviceMemory(memory_nbytes)
        self.host = HostPool()
        self._thread = threading.local()
        self._to_host = Channel("tensile-copy-out")
        self._to_device = Channel("tensile-copy-in") if duplex else self._to_host
        self._busy_mark = (time.monotonic_ns(), time.process_time_ns())

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Give the calling thread the device's number of kernel threads and leave autograd out."""
        # OpenMP's number of threads belongs to the calling thread.
        if getattr(self._thread, "prepared", False) is False:
            torch.set_num_threads(self.threads)
            self._thread.prepared = True
        with torch.inference_mode():
            yield

    def in_float32(self, function: Callable[..., Any], *, tf32: bool) -> Callable[..., Any]:
        """Return the function: TF32 is a permission, of which no use is made here."""
        return function

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Return memory, not cleared."""
        return new_storage(nbytes)

    def copy_out(
        self,
        job: JobId,
        source: torch.UntypedStorage,
        target: torch.UntypedStorage,
        delta_ns: int,
        after: int | None = None,
    ) -> PacedCopy:
        """Hand over a copy to the host, paced to d2h_bytes_per_s; kernels end before their calls return."""
        duration_ns = source.nbytes() * 1_000_000_000 // self.spec.d2h_bytes_per_s
        return self._to_host.submit(job, source, target, duration_ns=duration_ns, delta_ns=delta_ns)

    def copy_in(
        self,
        job: JobId,
        source: torch.UntypedStorage,
        target: torch.UntypedStorage,
        delta_ns: int,
        after: int | None = None,
    ) -> PacedCopy:
        """Hand over a copy to the device, paced to h2d_bytes_per_s, as copy_out."""
        duration_ns = source.nbytes() * 1_000_000_000 // self.spec.h2d_bytes_per_s
        return self._to_device.submit(job, source, target, duration_ns=duration_ns, delta_ns=delta_ns)

    def fill(self, target: torch.Tensor, source: np.ndarray | torch.Tensor) -> None:
        """Copy a batch into a tensor; arrays may be read-only, as memory maps are."""
        if isinstance(source, np.ndarray):
            np.copyto(target.numpy(), source, casting="no")
        else:
            target.copy_(source)

    def fetch(self, source: torch.Tensor) -> CpuFetched:
        """Copy the tensor as it is now."""
        return CpuFetched(source.clone())

    def record(self) -> int:
        """Return the time: kernels end before the call that runs them returns."""
        return time.perf_counter_ns()

    @property
    def mark_ns(self) -> int:
        """Return 0: what reading a clock takes is no part of what comes after."""
        return 0

    def hold_back(self, duration_ns: int) -> None:
        """Do nothing: no kernel runs behind the host."""

    def elapsed_ns(self, begin: int, end: int) -> int:
        """Return the time between two marks."""
        return end - begin

    @property
    def can_record(self) -> bool:
        """Return False: there is nothing to be gained, for kernels run in the calls that ask for them."""
        return False

    def open_recording(self) -> Recording:
        """Raise NotRecorded."""
        raise NotRecorded("the cpu device takes nothing down")

    @property
    def watches_memory(self) -> bool:
        """Return False: this device's memory holds tensors alone.

        Kernels do use more of the host's.  What ATen allocates it tells a profiler only; what oneDNN does,
        e.g. a third of the workspace of a 3 x 3 convolution, nobody.
        """
        return False

    def watch_memory(self) -> None:
        """Do nothing."""

    def watched_nbytes(self) -> int:
        """Return 0."""
        return 0

    def finish(self) -> None:
        """Return: kernels and awaited copies have ended when the calls that ask for them return."""

    def find_loss(self) -> Exception | None:
        """Return None: what runs on the processor fails where it is called."""
        return None

    def utilization(self) -> float:
        """Return the share of all cores that this process used since the last call, 0 to 1."""
        wall_ns, busy_ns = time.monotonic_ns(), time.process_time_ns()
        (last_wall_ns, last_busy_ns), self._busy_mark = self._busy_mark, (wall_ns, busy_ns)
        available_ns = max(1, wall_ns - last_wall_ns) * (os.cpu_count() or 1)
        return min(1.0, (busy_ns - last_busy_ns) / available_ns)

    def others_nbytes(self) -> int | None:
        """Return None: this device is a part of the host's memory, which others use with it."""
        return None

    def trim(self) -> None:
        """Let the host's free buffers go and, when no job holds memory, all free memory of the process."""
        self.host.trim()
        if self.memory.used_nbytes == 0:
            give_back_freed_memory()

    def close(self) -> None:
        """End the copy threads and let the host's buffers go."""
        self._to_host.close()
        if self._to_device is not self._to_host:
            self._to_device.close()
        self.trim()
