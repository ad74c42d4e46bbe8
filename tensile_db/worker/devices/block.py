"""A tensor's bytes, on the device, on the host, or both."""

from typing import Any

import torch

from tensile_db.worker.devices.under_way import Copy


class Block:
    """Where one tensor of a job is.  Changed by the job's Swapper and by the calls that make it.

    A host copy, where there is one and it is not still on its way there, has the device's value.
    """

    __slots__ = ("caches", "copy", "host", "leaving", "name", "nbytes", "persistent", "storage")

    def __init__(self, *, name: str, nbytes: int, persistent: bool) -> None:
        self.name = name
        self.nbytes = nbytes
        self.persistent = persistent
        #: The device's side.
        self.storage: torch.UntypedStorage | None = None
        #: The host's side.
        self.host: torch.UntypedStorage | None = None
        #: The copy under way, in either direction.
        self.copy: Copy | None = None
        #: Swapped out: the device's side goes when the copy has been waited for.
        self.leaving = False
        #: Tensors made over `storage`, as (table, places in it); they go when it goes.
        self.caches: list[tuple[list[Any], list[int]]] = []

    @property
    def host_is_valid(self) -> bool:
        """Whether the host has the tensor's value, now."""
        return self.host is not None and not (self.leaving and self.copy is not None)

    def forget_storage(self) -> None:
        """Let go of the device's side and of everything that looks at it."""
        self.storage = None
        for table, places in self.caches:
            for place in places:
                table[place] = None
