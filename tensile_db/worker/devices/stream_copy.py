"""A copy that goes by a stream of its own, in order with the kernels on another one.

Source: CUDA C++ Programming Guide, "Asynchronous Concurrent Execution".
"""

import torch

from tensile_db.worker.devices.runtime import Event, Runtime, Stream


class StreamCopy:
    """A copy that was given to a copy stream."""

    def __init__(
        self,
        runtime: Runtime,
        compute: Stream,
        channel: Stream,
        source: torch.UntypedStorage,
        target: torch.UntypedStorage,
        after: Event | None = None,
    ) -> None:
        """Give it to the channel; both sides have the same size.

        after: of the compute stream, what it comes after; None: all that was given to that stream.
        """
        assert source.nbytes() == target.nbytes(), "a copy's two sides differ in size"
        self._runtime = runtime
        self._compute = compute
        # After the kernels that made the source, and after the last use of the memory that is the target.
        runtime.wait(channel, runtime.record(compute) if after is None else after)
        runtime.copy(channel, source, target)
        self._ended = runtime.record(channel)

    def wait(self) -> None:
        """Have later kernels come after the copy; the host goes on."""
        self._runtime.wait(self._compute, self._ended)

    def has_ended(self) -> bool:
        """Whether it has; not to be asked while a passage is taken down."""
        return self._runtime.has_come(self._ended)

    def finish(self) -> None:
        """Block until it has ended."""
        self._runtime.synchronize(self._ended)

    def cancel(self) -> None:
        """Block until it has ended: a copy engine does not stop halfway."""
        self.finish()
