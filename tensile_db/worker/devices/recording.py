"""Device work that is taken down once and done again by few calls.

Kernels and copies that are the same in every iteration, over memory that stays where it is, need not be
handed over one by one.  A recording is made of passages: what lies between two of them is done in the
ordinary way, over the same memory.  Taking down does nothing else: what was taken down runs when replayed.

The rules, beside those of device.py:

- A recording's memory is its own from its opening to its closing, whatever the accounts say; whoever opens it
  charges for it.  Within it, what is let go of serves again at once, in the order of the taking down, and of
  every replay, for passages are replayed in that order.
- Nothing outside the recording may be allocated or let go of by what is taken down.
- All copies begun within a passage are waited for within it.
- The host learns nothing from the device within a passage.

Source: CUDA C++ Programming Guide, "CUDA Graphs"; pytorch docs/source/notes/cuda.rst, "CUDA Graphs".
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch

from tensile_db.worker.devices.under_way import Copy, Fetched
from tensile_db.worker.messages import JobId

#: What was taken down between two moments; whatever the device likes.
Passage = Any


class NotRecorded(Exception):  # not an error: the work is done op by op instead
    """Something cannot be taken down; the message says what, and why."""


class NotRecordedNow(NotRecorded):
    """It may be taken down later: what it needs others have at the moment."""


class Recording(Protocol):
    """Passages, and the memory that they use.  Used by one thread only."""

    @property
    def torch_device(self) -> torch.device:
        """Where PyTorch puts its tensors."""
        ...

    @property
    def default_generator(self) -> torch.Generator:
        """What kernels draw from that take no generator: while taking down, the recording's own."""
        ...

    @property
    def generator(self) -> torch.Generator:
        """What passages draw from: it stands for the job's, which each replay takes over and carries on."""
        ...

    @property
    def nbytes(self) -> int:
        """Device memory that it holds, used at the moment or not."""
        ...

    def taking_down(self) -> AbstractContextManager[None]:
        """Have the calling thread's allocations come from the recording; kernels belong into passages."""
        ...

    def passage(self) -> AbstractContextManager[Passage]:
        """Take down what the calling thread hands over within the context.

        Raises NotRecorded at its end, or whatever the device says within it; then only `close` is left.
        """
        ...

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Return memory of the recording, not cleared."""
        ...

    def take_library_workspaces(self) -> None:
        """Have libraries take now, of the recording's memory, what they keep while it is there."""
        ...

    def copy_out(
        self, job: JobId, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int
    ) -> Copy:
        """Take down a copy to the host, within a passage."""
        ...

    def copy_in(
        self, job: JobId, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int
    ) -> Copy:
        """Take down a copy to the device, as copy_out."""
        ...

    def fill(self, target: torch.Tensor, source: np.ndarray | torch.Tensor) -> None:
        """Raise NotRecorded: batches differ."""
        ...

    def fetch(self, source: torch.Tensor) -> Fetched:
        """Raise NotRecorded: nobody is told what a replay finds."""
        ...

    def find_loss(self) -> Exception | None:
        """Return None: within a passage the device cannot be asked.

        Who gives a recording up for what failed in it asks the device after that.
        """
        ...

    def at(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Return the same memory without holding it."""
        ...

    def replaying(self) -> AbstractContextManager[None]:
        """Have what the calling thread hands over within, passages and else, come in an order of its own.

        It comes after all that anybody has handed over before.  What others hand over meanwhile does not wait
        for it; what anybody hands over after the context does, and so may use its memory again.
        """
        ...

    def replay(self, passage: Passage, job_generator: torch.Generator | None) -> None:
        """Hand a passage over, as one kernel among those of `replaying`.

        job_generator: where it draws random numbers, what it goes on from and leaves behind.
        """
        ...

    def close(self) -> None:
        """Wait for what is under way and give the memory back, also after taking down has failed."""
        ...
