"""Moves a job's tensors between the device and the host.

Copies are handed to the device's channels and awaited later, in the order of kernels (devices/device.py);
those between iterations are waited for by the thread that asks for them.
A copy that the host still has is not made again: it stays valid from the end of a swap-in, or from the
start, until an op writes the tensor.

Source: TENSILE section III-D (Swap Executor).
Differs: the host's copy is kept when a tensor comes back, so that swapping it out again unchanged is free.
"""

import time
from collections.abc import Sequence
from itertools import chain

import torch

from tensile_db.worker.devices.accounts import Charges
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.device import Device, Mark
from tensile_db.worker.devices.under_way import Copy, DeviceCopy


class Swapper:
    """One job's swaps.  Used by the job's thread only."""

    def __init__(self, device: Device, account: Charges) -> None:
        self._device = device
        self._account = account
        #: Blocks with a copy under way, in the order handed over.
        self._under_way: dict[Block, None] = {}
        #: Bytes really copied since `reset_counts`.
        self.out_nbytes = 0
        self.in_nbytes = 0
        #: When the first wait since the last op, or the iteration's begin, began; None before there is any.
        self.waiting_since_ns: int | None = None
        #: (before, after) waiting for a copy that had not ended, since `reset_counts`.
        self._stalls: list[tuple[Mark, Mark]] = []

    def reset_counts(self) -> None:
        """Count from now on: an iteration begins."""
        self.waiting_since_ns = None
        self.out_nbytes = self.in_nbytes = 0
        self._stalls.clear()

    def stall_ns(self) -> int:
        """Return the time that kernels waited for copies since `reset_counts`; waits until they have run."""
        return sum(self._device.elapsed_ns(before, after) for before, after in self._stalls)

    def copy_out(self, block: Block, delta_ns: int = 0) -> None:
        """Start copying to the host, `delta_ns` after the last op's end or later.

        The device's side stays until `settle`.
        """
        assert block.storage is not None, f"{block.name} is not on the device"
        assert block.copy is None, f"{block.name} is under way already"
        block.leaving = True
        if block.host is not None:
            return
        block.host = self._acquire_host(block)
        block.copy = self._begin_out(block.storage, block.host, self._left_of_ns(delta_ns))
        self._under_way[block] = None
        self.out_nbytes += block.nbytes

    def copy_in(self, block: Block, delta_ns: int = 0) -> None:
        """Allocate on the device and start copying there, `delta_ns` after the last op's end or later.

        Raises DeviceOutOfMemory.
        """
        assert block.host is not None, f"{block.name} is not on the host"
        assert block.storage is None, f"{block.name} is on the device already"
        block.storage = self._acquire_device(block)
        block.copy = self._begin_in(block.host, block.storage, self._left_of_ns(delta_ns))
        self._under_way[block] = None
        self.in_nbytes += block.nbytes

    def take_out(self, groups: Sequence[Sequence[Block]]) -> None:
        """Copy to the host, one group after another, and free the device's side, between iterations.

        The calling thread waits for the copies, so that no kernel of another job's has to.
        """
        buffers: dict[Block, torch.UntypedStorage] = {}
        try:
            for block in chain.from_iterable(groups):
                if block.host is None:
                    buffers[block] = self._acquire_host(block)
            # Copies of other jobs may still use these buffers; later ones do not.
            after = self._device.record()
            for group in groups:
                begun = []
                for block in group:
                    if block in buffers:
                        source, target = block.storage, buffers[block]
                        assert source is not None, f"{block.name} is not on the device"
                        begun.append(self._device.copy_out(self._account.job, source, target, 0, after))
                        block.host, block.copy = buffers.pop(block), begun[-1]
                        self._under_way[block] = None
                        self.out_nbytes += block.nbytes
                    block.leaving = True
                self._finish(group, begun)
        finally:
            for block, buffer in buffers.items():
                self._release_host(block, buffer)

    def bring_in(self, groups: Sequence[Sequence[Block]]) -> None:
        """Allocate on the device, then copy there, one group after another, between iterations.

        The calling thread waits for the copies, so that no kernel of another job's has to.
        Raises DeviceOutOfMemory; then nothing has changed.
        """
        storages: dict[Block, torch.UntypedStorage] = {}
        try:
            for block in chain.from_iterable(groups):
                storages[block] = self._acquire_device(block)
            # Kernels of other jobs may still use this memory; later ones do not.
            after = self._device.record()
            for group in groups:
                begun = []
                for block in group:
                    source, target = block.host, storages[block]
                    assert source is not None, f"{block.name} is not on the host"
                    begun.append(self._device.copy_in(self._account.job, source, target, 0, after))
                    block.storage, block.copy = storages.pop(block), begun[-1]
                    self._under_way[block] = None
                    self.in_nbytes += block.nbytes
                self._finish(group, begun)
        finally:
            # Memory goes before its charge: an exception would hold it through this frame.
            while storages:
                block = next(iter(storages))
                del storages[block]
                self._release_device(block)

    def _finish(self, group: Sequence[Block], begun: Sequence[DeviceCopy]) -> None:
        for copy in begun:
            copy.finish()
        for block in group:
            self.settle(block)

    def settle(self, block: Block) -> None:
        """Wait for the block's copy under way; after a swap-out, free the device's side."""
        if block.copy is not None:
            if self.waiting_since_ns is None:
                self.waiting_since_ns = time.monotonic_ns()
            self._wait_for(block.copy)
            block.copy = None
            del self._under_way[block]
        if block.leaving:
            block.leaving = False
            self.drop_device(block)

    def settle_all(self) -> None:
        """Wait for every copy under way."""
        for block in tuple(self._under_way):
            self.settle(block)

    def abandon_all(self) -> None:
        """Give up every copy under way; the tensors' values are lost."""
        for block in tuple(self._under_way):
            assert block.copy is not None
            block.copy.cancel()
            block.copy = None
        self._under_way.clear()

    def drop_host(self, block: Block) -> None:
        """Let the host's copy go: it is outdated, or not needed."""
        assert block.host is not None, f"{block.name} is not on the host"
        assert block.copy is None, f"{block.name} is written while it is copied"
        self._release_host(block, block.host)
        block.host = None

    def drop_device(self, block: Block) -> None:
        """Free the device's side."""
        assert block.storage is not None, f"{block.name} is not on the device"
        block.forget_storage()
        self._release_device(block)

    def drop(self, block: Block) -> None:
        """Free both sides; no copy may be under way."""
        assert block.copy is None, f"{block.name} is freed while it is copied"
        block.leaving = False
        if block.storage is not None:
            self.drop_device(block)
        if block.host is not None:
            self.drop_host(block)

    def _left_of_ns(self, delta_ns: int) -> int:
        """Return what is left of a delay from the last op's end: what was waited for since is part of it."""
        if not delta_ns or self.waiting_since_ns is None:
            return delta_ns
        return max(0, delta_ns - (time.monotonic_ns() - self.waiting_since_ns))

    def _acquire_host(self, block: Block) -> torch.UntypedStorage:
        return self._device.host.acquire(block.nbytes)

    def _release_host(self, block: Block, buffer: torch.UntypedStorage) -> None:
        self._device.host.release(buffer)

    def _acquire_device(self, block: Block) -> torch.UntypedStorage:
        self._account.charge(block.nbytes)
        try:
            return self._device.allocate(block.nbytes)
        except BaseException:
            self._account.release(block.nbytes)
            raise

    def _release_device(self, block: Block) -> None:
        self._account.release(block.nbytes)

    def _begin_out(self, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int) -> Copy:
        return self._device.copy_out(self._account.job, source, target, delta_ns)

    def _begin_in(self, source: torch.UntypedStorage, target: torch.UntypedStorage, delta_ns: int) -> Copy:
        return self._device.copy_in(self._account.job, source, target, delta_ns)

    def _wait_for(self, copy: Copy) -> None:
        # Where the host is behind, most have, and each wait costs it as much as a copy.
        if copy.has_ended():
            return
        before = self._device.record()
        copy.wait()
        self._stalls.append((before, self._device.record()))
