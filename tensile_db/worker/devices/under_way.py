"""What a device has been asked for and may do later: copies to either side, values for the host."""

from typing import Protocol

import torch


class Copy(Protocol):
    """A copy that was handed over to a channel."""

    def wait(self) -> None:
        """Let what is handed over later see the copy ended.  Raises what made the copy fail."""
        ...

    def has_ended(self) -> bool:
        """Whether it has, and did not fail: then nothing that is handed over later needs to wait."""
        ...

    def cancel(self) -> None:
        """Give the copy up and wait until the channel has let go of both memories."""
        ...


class DeviceCopy(Copy, Protocol):
    """A copy that was handed over to a device, and is no part of a recording."""

    def finish(self) -> None:
        """Block the host until the copy has ended; a `wait` after that holds up no kernel.

        Raises what made the copy fail.
        """
        ...


class Fetched(Protocol):
    """A device tensor's value on its way to the host."""

    def get(self) -> torch.Tensor:
        """Wait for it, and return it in memory of its own."""
        ...
