"""What the executor asks of a device, whatever it is made of.

A device has a memory of enforced capacity, an account on it for every job, kernels that run in order, and
channels that copy between its memory and the host's.

What is handed over may happen later than the call that hands it over.  The rules that keep it right:

- Kernels, fills, fetches and marks happen in the order handed over, whichever job hands over; those of a
  replay have an order of their own (`Recording.replaying`).
- A copy begins after all of them that were handed over before it, or before the mark that it is given.  Later
  ones come after the copy only once `Copy.wait` was called; until then they must not touch the device's side,
  except to read it beside a copy to the host.
- Device memory and host buffers are let go of in that same order, so that they may be handed out again at
  once, for what is handed over later; no copy of them may lack its `wait`.
- The host itself touches a host buffer only after a `finish` that comes after the buffer was acquired:
  another job's copy may still use it.  It waits there, in `DeviceCopy.finish`, for a Fetched's value and for
  the time between two marks, and nowhere else.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch

from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.devices.accounts import DeviceMemory
from tensile_db.worker.devices.host_memory import HostPool
from tensile_db.worker.devices.recording import Recording
from tensile_db.worker.devices.under_way import DeviceCopy, Fetched
from tensile_db.worker.messages import JobId

#: A moment in the order of kernels; whatever the device likes.
Mark = Any


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

    @property
    def default_generator(self) -> torch.Generator:
        """What kernels draw from that take no generator."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Prepare the calling thread for running kernels here: streams, threads, no autograd."""
        ...

    def in_float32(self, function: Callable[..., Any], *, tf32: bool) -> Callable[..., Any]:
        """Return a function of PyTorch's that computes float32 in full, or in TF32 where the device has it.

        Makes no difference to a function that multiplies nothing, nor to other dtypes.
        """
        ...

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Return device memory, not cleared.  The caller has charged its account with it."""
        ...

    def copy_out(
        self,
        job: JobId,
        source: torch.UntypedStorage,
        target: torch.UntypedStorage,
        delta_ns: int,
        after: Mark | None = None,
    ) -> DeviceCopy:
        """Hand over a copy to the host that starts `delta_ns` from now or later, if the device can wait so.

        after: a mark from which on nothing touches either side; what was handed over later need not happen
        before the copy.
        A job's copies of one direction are carried out one at a time, in the order handed over.
        """
        ...

    def copy_in(
        self,
        job: JobId,
        source: torch.UntypedStorage,
        target: torch.UntypedStorage,
        delta_ns: int,
        after: Mark | None = None,
    ) -> DeviceCopy:
        """Hand over a copy to the device, as copy_out."""
        ...

    def fill(self, target: torch.Tensor, source: np.ndarray | torch.Tensor) -> None:
        """Copy a batch from the host into a device tensor of the same shape and dtype."""
        ...

    def fetch(self, source: torch.Tensor) -> Fetched:
        """Hand over a copy of a device tensor to the host, as it is when the kernels before have run."""
        ...

    def record(self) -> Mark:
        """Return a mark of this moment in the order of kernels."""
        ...

    def elapsed_ns(self, begin: Mark, end: Mark) -> int:
        """Wait until the kernels have come to both marks, and return the time between them."""
        ...

    @property
    def mark_ns(self) -> int:
        """What a mark adds to the time between those beside it."""
        ...

    def hold_back(self, duration_ns: int) -> None:
        """Have kernels handed over from now on begin about so much later, where they run behind the host.

        Then marks between them tell what the kernels take, and not how fast the host hands them over.
        """
        ...

    @property
    def can_record(self) -> bool:
        """Whether work may be taken down to be done again (recording.py)."""
        ...

    def open_recording(self) -> Recording:
        """Return an empty recording, which holds no memory yet.  Raises NotRecorded."""
        ...

    @property
    def watches_memory(self) -> bool:
        """Whether it sees what kernels allocate beyond their tensors."""
        ...

    def watch_memory(self) -> None:
        """Begin to watch what is allocated, by anybody; for measurements while nobody else is at work."""
        ...

    def watched_nbytes(self) -> int:
        """Return the most bytes allocated at once since watch_memory, beyond what was there then."""
        ...

    def finish(self) -> None:
        """Wait until all kernels handed over have ended, and with them the copies that they come after."""
        ...

    def find_loss(self) -> Exception | None:
        """Return what the device answers whatever it is asked, where it is lost; None: it goes on.

        For use after a failure: waits for the kernels that the calling thread has handed over, and so not
        while that thread takes something down.
        """
        ...

    def utilization(self) -> float:
        """Return the share of the device's arithmetic in use since the last call, 0 to 1."""
        ...

    def others_nbytes(self) -> int | None:
        """Return what other processes hold of the device's memory; None where that cannot be told."""
        ...

    def trim(self) -> None:
        """Let go of free memory that is kept for speed; called when a job has ended."""
        ...

    def close(self) -> None:
        """Give back threads and buffers.  All jobs must have closed their accounts."""
        ...
