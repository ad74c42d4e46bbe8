"""A device with a simulated clock, for tests of what runs on one.

Copies take the time that the link's speed says, on the clock; their bytes are moved as late as can be, when
somebody waits for them, and a swap-in's target holds NaN until then.  So whoever does not wait is found out.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.accounts import DeviceMemory
from tensile_db.worker.devices.cpu import CpuFetched
from tensile_db.worker.devices.host_memory import HostPool, new_storage


@dataclass(eq=False, repr=False)
class FakeCopy:
    """A copy on the simulated link: [begin_ns, end_ns)."""

    device: "FakeDevice"
    job: int
    to_host: bool
    source: torch.UntypedStorage
    target: torch.UntypedStorage
    begin_ns: int
    end_ns: int
    state: str = "under way"

    def wait(self):
        assert self.state == "under way"
        self.device.now_ns = max(self.device.now_ns, self.end_ns)
        self.target.copy_(self.source)
        self.state = "ended"

    def finish(self):
        assert self.state == "under way"
        self.device.now_ns = max(self.device.now_ns, self.end_ns)

    def has_ended(self):
        # The bytes move when it is waited for.
        return False

    def cancel(self):
        assert self.state == "under way"
        self.state = "cancelled"


@dataclass(eq=False, repr=False)
class FakeDevice:
    """A `Device` whose kernels take no time; a byte takes a nanosecond on its links unless told otherwise."""

    memory_nbytes: int = 1 << 30
    d2h_bytes_per_s: int = 1_000_000_000
    h2d_bytes_per_s: int = 1_000_000_000
    duplex: bool = True
    now_ns: int = 0
    can_record: bool = False
    held_by_others_nbytes: int | None = None
    mark_ns: int = 0
    watches_memory: bool = False
    copies: list[FakeCopy] = field(default_factory=list)
    held_back_ns: list[int] = field(default_factory=list)
    #: What a lost device answers.
    loss: Exception | None = None

    def __post_init__(self):
        self.spec = DeviceSpec(
            name="fake",
            memory_nbytes=self.memory_nbytes,
            d2h_bytes_per_s=self.d2h_bytes_per_s,
            h2d_bytes_per_s=self.h2d_bytes_per_s,
            duplex=self.duplex,
            flops_per_s=1_000_000_000_000,
            memory_bytes_per_s=1_000_000_000_000,
            op_overhead_ns=1_000,
        )
        self.torch_device = torch.device("cpu")
        self.default_generator = torch.default_generator
        self.memory = DeviceMemory(self.memory_nbytes)
        self.host = HostPool()
        self._free_ns = [0, 0]

    @contextmanager
    def computing(self):
        with torch.inference_mode():
            yield

    def in_float32(self, function, *, tf32):
        return function

    def allocate(self, nbytes):
        return new_storage(nbytes)

    def copy_out(self, job, source, target, delta_ns, after=None):
        return self._copy(job, source, target, delta_ns, to_host=True)

    def copy_in(self, job, source, target, delta_ns, after=None):
        target.fill_(0xFF)
        return self._copy(job, source, target, delta_ns, to_host=False)

    def _copy(self, job, source, target, delta_ns, *, to_host):
        assert source.nbytes() == target.nbytes()
        channel = 1 if self.duplex and not to_host else 0
        speed = self.d2h_bytes_per_s if to_host else self.h2d_bytes_per_s
        begin_ns = max(self.now_ns + delta_ns, self._free_ns[channel])
        end_ns = begin_ns + source.nbytes() * 1_000_000_000 // speed
        self._free_ns[channel] = end_ns
        copy = FakeCopy(self, job, to_host, source, target, begin_ns, end_ns)
        self.copies.append(copy)
        return copy

    def fill(self, target, source):
        target.copy_(torch.from_numpy(source) if isinstance(source, np.ndarray) else source)

    def fetch(self, source):
        return CpuFetched(source.clone())

    def record(self):
        return self.now_ns

    def hold_back(self, duration_ns):
        self.held_back_ns.append(duration_ns)

    def elapsed_ns(self, begin, end):
        return end - begin

    def watch_memory(self):
        pass

    def watched_nbytes(self):
        return 0

    def finish(self):
        pass

    def find_loss(self):
        return self.loss

    def utilization(self):
        return 0.0

    def others_nbytes(self):
        return self.held_by_others_nbytes

    def trim(self):
        self.host.trim()

    def close(self):
        self.trim()
