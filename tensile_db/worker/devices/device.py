"""What the executor asks of a device, whatever it is made of.

A device has a memory of enforced capacity, an account on it for every job, kernels that run in order, and
channels that copy between its memory and the host's.  Copies are handed over and waited for; nothing else
makes the caller wait.
"""

from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import torch

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.accounts import DeviceMemory
from tensile_db.worker.devices.host_memory import HostPool
from tensile_db.worker.messages import JobId


class Copy(Protocol):
    """A copy that was handed over to a channel."""

    def wait(self) -> None:
        """Let the caller's later kernels see the copy ended.  Raises what made the copy fail."""
        ...

    def cancel(self) -> None:
        """Give the copy up and wait until the channel has let go of both memories."""
        ...


class Device(Protocol):
    """A machine that runs kernels over a memory of its own.  Safe for many threads, one a job."""

    @property
    def spec(self) -> DeviceSpec:
        """What the planner knows of it."""
        ...

    @property
    def torch_device(self) -> torch.device:
        """Where PyTorch puts its tensors."""
        ...

    @property
    def memory(self) -> DeviceMemory:
        """Who holds how much of the device's memory."""
        ...

    @property
    def host(self) -> HostPool:
        """The host's buffers for what is swapped out."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Prepare the calling thread for running kernels here: streams, threads, no autograd."""
        ...

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Return device memory, not cleared.  The caller has charged its account with it."""
        ...

    def copy_out(
        self, job: JobId, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int
    ) -> Copy:
        """Hand over a copy to the host that starts `delta_ns` from now or later.

        A job's copies of one direction are carried out one at a time, in the order handed over.
        """
        ...

    def copy_in(
        self, job: JobId, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int
    ) -> Copy:
        """Hand over a copy to the device, as copy_out."""
        ...

    def fill(self, target: torch.Tensor, source: np.ndarray | torch.Tensor) -> None:
        """Copy a batch from the host into a device tensor of the same shape and dtype."""
        ...

    def fetch(self, source: torch.Tensor) -> torch.Tensor:
        """Return a copy of a device tensor on the host, once it is computed."""
        ...

    def record(self) -> int:
        """Return a mark of this moment in the order of kernels."""
        ...

    def elapsed_ns(self, begin: int, end: int) -> int:
        """Return the time between two marks."""
        ...

    def utilization(self) -> float:
        """Return the share of the device's arithmetic in use since the last call, 0 to 1."""
        ...

    def trim(self) -> None:
        """Let go of free memory that is kept for speed; called when a job has ended."""
        ...

    def close(self) -> None:
        """Give back threads and buffers.  All jobs must have closed their accounts."""
        ...
