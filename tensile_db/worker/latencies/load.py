"""Work that keeps a device busy beside what is measured on it, as other jobs would.

Its utilization is what it would take of the device's arithmetic were it alone: what is asked for, not what
it gets beside the measurement.  So it can be told of jobs as well before they run (utilization_beside).
"""

import os
import threading
from types import TracebackType

import torch

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.device import Device

#: Side of the matrices multiplied, and elements of the vector added to: a kernel of a few ms each, one bound
#: by arithmetic, one by memory, as a training has both.
_SIDE, _ELEMENTS = 384, 2**20


def utilization_beside(device: Device, jobs: int, threads: int) -> float:
    """Return the share of the device's arithmetic, 0 to 1, that so many running jobs ask for.

    threads: of each job's kernels on the cpu device.  Elsewhere one job is taken to fill the device.
    """
    if device.torch_device.type != "cpu":
        return float(jobs > 0)
    return min(1.0, jobs * threads / (os.cpu_count() or 1))


class Load:
    """Kernels in threads of their own, while the context lasts."""

    def __init__(self, device: Device, workers: int) -> None:
        """workers: threads, each with one kernel thread on the cpu device."""
        self._device = device
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name="tensile-load", daemon=True) for _ in range(workers)
        ]

    @property
    def utilization(self) -> float:
        """The share of the device's arithmetic that is asked for, 0 to 1."""
        return utilization_beside(self._device, len(self._threads), threads=1)

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        with self._device.computing():
            # After the device has set its own number for this thread.
            torch.set_num_threads(1)
            where = self._device.torch_device
            matrix = torch.rand(_SIDE, _SIDE, device=where)
            product, vector = torch.empty_like(matrix), torch.zeros(_ELEMENTS, device=where)
            while not self._stopped.is_set():
                torch.mm(matrix, matrix, out=product)
                vector.add_(1.0)
                # Kernels are queued where they run beside the caller; this waits for them.
                self._device.fetch(vector[:1]).get()


def load_levels(number: int, device: DeviceSpec) -> tuple[int, ...]:
    """Return the numbers of load threads to measure a probe under.

    None, and, with the probe's number in turns, a quarter, half, or all of the cores: shapes teach more than
    levels do, and each level takes its time.  None alone where one job fills the device: no prediction is
    asked for beside others there (`Job.predict`), and a GPU would run the load's kernels in the order of the
    probe's, between the marks of its ops.
    """
    if device.concurrency == 1:
        return (0,)
    cores = os.cpu_count() or 1
    busy = sorted({max(1, cores // 4), max(1, cores // 2), cores})
    return 0, busy[number % len(busy)]
