"""A link between two memories: one copy at a time, paced to a stated speed.

A thread moves the bytes; a clock says how long the link is taken.  The copy of one job's queue that may
start first goes first, so that a job's copies keep their order and a copy that must still wait for its time
holds up nobody else's.

Source: TENSILE section III-D, figure 5 (Execution Queue, Execution Buffer).
Differs: one queue a channel and job, since a copy of one direction need not wait for those of the other.
"""

import ctypes
import threading
import time
from collections import deque
from itertools import count

import torch

from tensile_db.worker.messages import JobId

#: A copy is moved in pieces that take the link this long, so that it loads the memory evenly, as a DMA
#: engine does, and can be given up halfway.
PIECE_NS = 4_000_000

#: A copy may end so much early, at the expense of the next one: to sleep after each of many small ones would
#: cost the cores more than the copies do.
_EARLY_NS = 400_000


class PacedCopy:
    """A copy in a channel's queue."""

    def __init__(
        self,
        channel: "Channel",
        job: JobId,
        source: torch.UntypedStorage,
        target: torch.UntypedStorage,
        *,
        duration_ns: int,
        ready_ns: int,
        sequence: int,
    ) -> None:
        self.job = job
        self.source = source
        self.target = target
        self.duration_ns = duration_ns
        self.ready_ns = ready_ns
        self.sequence = sequence
        self.cancelled = False
        self._channel = channel
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def wait(self) -> None:
        """Block until the copy has ended.  Raises what made it fail."""
        self._ended.wait()
        if self._error is not None:
            raise self._error

    #: The host's own threads compute.
    finish = wait

    def has_ended(self) -> bool:
        """Whether it has, and did not fail."""
        return self._ended.is_set() and self._error is None

    def cancel(self) -> None:
        """Give the copy up and block until the channel has let go of both memories."""
        self._channel.cancel(self)
        self._ended.wait()

    def end(self, error: BaseException | None = None) -> None:
        """Wake whoever waits; called by the channel."""
        self._error = error
        self._ended.set()


class Channel:
    """Serves copies one at a time in a thread of its own, until closed."""

    def __init__(self, name: str) -> None:
        self._wake = threading.Condition()
        self._queues: dict[JobId, deque[PacedCopy]] = {}
        self._sequence = count()
        self._closing = False
        #: When the link is free again.
        self._free_ns = 0
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        job: JobId,
        source: torch.UntypedStorage,
        target: torch.UntypedStorage,
        *,
        duration_ns: int,
        delta_ns: int,
    ) -> PacedCopy:
        """Hand over a copy that takes the link for `duration_ns`, not before `delta_ns` from now."""
        assert source.nbytes() == target.nbytes(), "a copy's two sides differ in size"
        with self._wake:
            assert not self._closing, "the channel is closed"
            copy = PacedCopy(
                self,
                job,
                source,
                target,
                duration_ns=duration_ns,
                ready_ns=time.monotonic_ns() + delta_ns,
                sequence=next(self._sequence),
            )
            self._queues.setdefault(job, deque()).append(copy)
            self._wake.notify_all()
            return copy

    def cancel(self, copy: PacedCopy) -> None:
        """Take a copy out of its queue; one that has begun ends after its present piece."""
        with self._wake:
            copy.cancelled = True
            queue = self._queues.get(copy.job)
            if queue is not None and copy in queue:
                queue.remove(copy)
                if not queue:
                    del self._queues[copy.job]
                copy.end()
            self._wake.notify_all()

    def close(self) -> None:
        """End the thread; copies that have not begun are given up."""
        with self._wake:
            self._closing = True
            for queue in self._queues.values():
                for copy in queue:
                    copy.cancelled = True
                    copy.end()
            self._queues.clear()
            self._wake.notify_all()
        self._thread.join()

    def _serve(self) -> None:
        while (copy := self._next()) is not None:
            try:
                self._carry_out(copy)
            except BaseException as error:  # noqa: BLE001  # who waits for the copy must hear of it, or waits for ever
                copy.end(error)
            else:
                copy.end()

    def _next(self) -> PacedCopy | None:
        """Return the next copy once its time has come; None when the channel is closed."""
        with self._wake:
            while not self._closing:
                heads = [queue[0] for queue in self._queues.values()]
                if not heads:
                    self._wake.wait()
                    continue
                copy = min(heads, key=lambda head: (head.ready_ns, head.sequence))
                early_ns = copy.ready_ns - time.monotonic_ns()
                if early_ns > 0:
                    self._wake.wait(early_ns / 1e9)
                    continue
                queue = self._queues[copy.job]
                queue.popleft()
                if not queue:
                    del self._queues[copy.job]
                return copy
            return None

    def _carry_out(self, copy: PacedCopy) -> None:
        # The link's own clock, not the thread's: what the thread oversleeps is not lost to later copies.
        begin_ns = max(copy.ready_ns, self._free_ns)
        nbytes = copy.source.nbytes()
        pieces = max(1, copy.duration_ns // PIECE_NS)
        moved_ns = begin_ns
        for piece in range(pieces):
            if copy.cancelled:
                break
            begin, end = nbytes * piece // pieces, nbytes * (piece + 1) // pieces
            # Not Tensor.copy_: it would spread over the threads that the kernels need.
            ctypes.memmove(copy.target.data_ptr() + begin, copy.source.data_ptr() + begin, end - begin)
            moved_ns = time.monotonic_ns()
            ends_ns = begin_ns + copy.duration_ns * (piece + 1) // pieces
            if ends_ns - moved_ns > _EARLY_NS:
                _sleep_until(ends_ns)
        self._free_ns = moved_ns if copy.cancelled else max(begin_ns + copy.duration_ns, moved_ns)


def _sleep_until(at_ns: int) -> None:
    while (left_ns := at_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)
