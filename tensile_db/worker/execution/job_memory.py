"""What a job keeps from one iteration to the next: its persistent tensors and its random generator.

Several steps of a job (training, and validation in between) run over the same tensors, which they know by
name.  Tensors begin on the host and cost the device nothing until a program wants them there.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch

from tensile_db.capture.parts import flat, laid_out, parameter_of, split_name
from tensile_db.capture.step import CapturedStep, View
from tensile_db.errors import HostOutOfMemory
from tensile_db.graph import TensorId
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.device import Device
from tensile_db.worker.execution.swapper import Swapper
from tensile_db.worker.messages import JobId

#: Of the link's time; other jobs' copies wait for no more than that, or one tensor.
_GROUP_US = 2_000


class Recorded(Protocol):
    """An iteration taken down (recorded_iteration.py), as far as it takes memory.

    It can be replayed only while the persistent tensors are where they were.
    """

    def close(self) -> None:
        """Give back all that it holds, to the account and to the device."""
        ...


class JobMemory:
    """A job's account on a device and what it holds.

    Used by the job's thread only, but for `shrink`: while the job has no turn, another job's thread may call
    it, and binding and unbinding steps go on beside it.
    """

    def __init__(
        self,
        device: Device,
        *,
        job: JobId,
        budget_nbytes: int,
        state: Mapping[str, torch.Tensor],
        seed: int,
        keeps_host: bool = False,
    ) -> None:
        """Open the account.

        state: values on the host by name, taken over when a step first needs them.
        keeps_host: nothing writes the tensors, and their host copies are kept, so that leaving the device
        takes no time.
        """
        self.keeps_host = keeps_host
        self.device = device
        self.account = device.memory.open_account(job, budget_nbytes)
        self.swapper = Swapper(device, self.account)
        self.generator = torch.Generator(device.torch_device).manual_seed(seed)
        #: The step (by identity) whose program the persistent tensors are in place for.
        self.in_place_for: object | None = None
        #: Counts what may have left persistent tensors, or their host copies, elsewhere between iterations.
        self.moves = 0
        #: By executor: persistent tensors that its program swaps out, which need their host copies again.
        self._swapped_out_by: dict[object, frozenset[Block]] = {}
        #: The state leaves between turns: what the host has is kept, and need not be copied if it is valid.
        self.state_leaves = False
        #: Holds memory of the account, and goes as soon as something else needs it.
        self.recorded: Recorded | None = None
        #: Around the freeing of that: others may measure what the device's memory does meanwhile.
        self.freeing: Callable[[], AbstractContextManager[None]] = nullcontext
        self._initial = dict(state)
        self._blocks: dict[str, Block] = {}
        self._views: dict[str, View] = {}
        #: Of tensors that the steps hold in parts, by whole name: what they are laid out as.
        self._layouts: dict[str, View] = {}
        #: Blocks of the steps in use, by tensor id.
        self._bound: list[list[Block]] = []
        #: Held by whoever changes what is bound, or what looks at blocks, or frees what is on the device
        #: between turns.
        self.changing = threading.RLock()

    def bind(self, step: CapturedStep) -> list[Block]:
        """Return a step's blocks by tensor id; steps share the persistent ones by name."""
        with self.changing:
            return self._bind(step)

    def _bind(self, step: CapturedStep) -> list[Block]:
        persistent: dict[TensorId, Block] = {}
        new: list[tuple[str, Block, View]] = []
        for name, view in step.state.items():
            block = persistent.get(view.tensor) or self._blocks.get(name)
            if block is None:
                block = Block(name=name, nbytes=step.graph.tensors[view.tensor].nbytes, persistent=True)
                block.host = self.device.host.acquire(block.nbytes)
            nbytes = step.graph.tensors[view.tensor].nbytes
            assert block.nbytes == nbytes, f"{name} differs in size between steps"
            if name not in self._blocks:
                new.append((name, block, view))
                self._blocks[name], self._views[name] = block, view
            persistent[view.tensor] = block
        # A copy of another job's may still use a buffer that it has let go of.
        self.device.finish()
        for name, block, view in new:
            # Tied parameters have several names and one block; each name brings the same value.
            view_of(block.host, view).copy_(self._first_value(step, name))
        for name in step.state:
            self._initial.pop(split_name(name)[0], None)
        blocks = [
            persistent[tensor.id]
            if tensor.persistent
            else Block(name=tensor.name, nbytes=tensor.nbytes, persistent=False)
            for tensor in step.graph.tensors
        ]
        self._bound.append(blocks)
        return blocks

    def forget_recorded(self) -> None:
        """Let the recorded iteration go, if there is one: its memory is needed, or tensors are to move."""
        recorded, self.recorded = self.recorded, None
        if recorded is not None:
            with self.freeing():
                recorded.close()

    def unbind(self, blocks: list[Block]) -> None:
        """Free what a step has beyond the persistent tensors, also in the middle of an iteration."""
        with self.changing:
            self.forget_recorded()
            self.swapper.settle_all()
            for block in blocks:
                if not block.persistent:
                    self.swapper.drop(block)
            self._bound = [bound for bound in self._bound if bound is not blocks]

    def move(
        self,
        *,
        to_host: Collection[Block],
        to_device: Collection[Block],
        peak_nbytes: int,
        others_nbytes: int | None,
    ) -> bool:
        """Bring persistent tensors where a program wants them; return whether any moved.

        Those that the program does not know leave as far as its peak needs their room, and until no more than
        `others_nbytes` of them are there, if that is given.  Swap-outs come first, then swap-ins.
        A recorded iteration stays where nothing moves.
        Raises DeviceOutOfMemory.
        """
        self.swapper.settle_all()
        named = {*to_host, *to_device}
        others = {block for block in self._blocks.values() if block.storage is not None} - named
        room_nbytes = self.account.budget_nbytes - peak_nbytes
        if others_nbytes is not None:
            room_nbytes = min(room_nbytes, others_nbytes)
        leaving = [block for block in to_host if block.storage is not None]
        coming = [block for block in to_device if block.storage is None]
        excess_nbytes = sum(block.nbytes for block in others) - room_nbytes
        for block in sorted(others, key=lambda other: (-other.nbytes, other.name)):
            if excess_nbytes > 0:
                leaving.append(block)
                excess_nbytes -= block.nbytes
        if not leaving and not coming:
            return False
        self.forget_recorded()
        self.moves += 1
        self.swapper.take_out(self._groups(leaving))
        self.swapper.bring_in(self._groups(coming))
        return True

    def has_room_beside(self, nbytes: int, swap_out_sizes: Sequence[int]) -> bool:
        """Whether so much fits beside all that is held, and the host has room for buffers of these sizes."""
        if self.account.used_nbytes + nbytes > self.account.budget_nbytes:
            return False
        try:
            self.device.host.reserve(swap_out_sizes)
        except HostOutOfMemory:
            return False
        return True

    def swaps_out(self, executor: object, blocks: Iterable[Block]) -> None:
        """Be told what the program of an executor swaps out."""
        self._swapped_out_by[executor] = frozenset(block for block in blocks if block.persistent)

    def swaps_no_more(self, executor: object) -> None:
        """Be told that an executor is closed."""
        self._swapped_out_by.pop(executor, None)

    def drop_unused_host_copies(self, blocks: Iterable[Block]) -> None:
        """Free the host copies of those on the device that no program swaps out.

        A recorded iteration, which knows host copies by their place, keeps those it swaps.
        """
        if self.keeps_host or self.state_leaves:
            return
        kept = frozenset[Block]().union(*self._swapped_out_by.values())
        for block in blocks:
            if block.storage is not None and block.host is not None and block not in kept:
                self.swapper.drop_host(block)

    def shrink(self, nbytes: int) -> None:
        """Let persistent tensors leave for the host, the largest first, until the job holds so many bytes."""
        with self.changing:
            self._shrink(nbytes)

    def _shrink(self, nbytes: int) -> None:
        if self.account.used_nbytes > nbytes:
            self.forget_recorded()
        if self.account.used_nbytes <= nbytes:
            return
        self.in_place_for = None
        self.moves += 1
        there = [block for block in dict.fromkeys(self._blocks.values()) if block.storage is not None]
        excess_nbytes = self.account.used_nbytes - nbytes
        leaving = []
        # Those first that need not be copied.
        for block in sorted(there, key=lambda block: (block.host is None, -block.nbytes, block.name)):
            if excess_nbytes > 0:
                leaving.append(block)
                excess_nbytes -= block.nbytes
        self.swapper.take_out(self._groups(leaving))

    def state(self, wanted: Callable[[str], bool] | None = None) -> dict[str, torch.Tensor]:
        """Return copies on the host of all persistent tensors, or of those wanted, between iterations."""
        self.device.finish()
        values = {
            name: value.clone() for name, value in self._initial.items() if wanted is None or wanted(name)
        }
        for name, block in self._blocks.items():
            whole, part = split_name(name)
            if wanted is not None and not wanted(whole):
                continue
            if block.host_is_valid:
                value = view_of(block.host, self._views[name])
            else:
                value = self.device.fetch(view_of(block.storage, self._views[name])).get()
            if part is None:
                values[name] = value.clone() if block.host_is_valid else value
                continue
            if whole not in values:
                like = self._layouts[whole]
                values[whole] = torch.empty_strided(like.size, like.stride, dtype=like.dtype)
            flat(values[whole])[part.begin : part.end].copy_(value)
        return values

    def _groups(self, blocks: Iterable[Block]) -> list[list[Block]]:
        """Return the blocks in groups whose copies are handed over together.

        A channel serves copies in the order in which they may begin: a whole state handed over at once would
        have the swaps of another job, which computes, wait for all of it.
        """
        rate = min(self.device.spec.d2h_bytes_per_s, self.device.spec.h2d_bytes_per_s)
        most_nbytes = rate * _GROUP_US // 1_000_000
        groups: list[list[Block]] = []
        nbytes = 0
        for block in blocks:
            if not groups or nbytes + block.nbytes > most_nbytes:
                groups.append([])
                nbytes = 0
            groups[-1].append(block)
            nbytes += block.nbytes
        return groups

    def _first_value(self, step: CapturedStep, name: str) -> torch.Tensor:
        """Return the value that a persistent tensor of a step begins with, a part's as a flat window."""
        whole, part = split_name(name)
        assert whole in self._initial, f"the job has no value for {whole}"
        if part is None:
            return self._initial[whole]
        like = self._layouts.setdefault(whole, step.state[parameter_of(whole)])
        return flat(laid_out(self._initial[whole], like))[part.begin : part.end]

    def random_state(self) -> torch.Tensor:
        """Return the generator's state (uint8), for a checkpoint."""
        return self.generator.get_state()

    def set_random_state(self, state: torch.Tensor) -> None:
        """Go on drawing from where a checkpoint was made."""
        self.generator.set_state(state)

    def close(self) -> None:
        """Free everything and end the account, also after an iteration broke off."""
        self.forget_recorded()
        self.swapper.abandon_all()
        for blocks in (*self._bound, self._blocks.values()):
            for block in blocks:
                self.swapper.drop(block)
        self._bound.clear()
        self._blocks.clear()
        self._initial.clear()
        self.account.close()
        self.device.trim()

    def __enter__(self) -> "JobMemory":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()


def view_of(storage: torch.UntypedStorage | None, view: View) -> torch.Tensor:
    """Return the tensor that a view is of a storage."""
    assert storage is not None, f"tensor {view.tensor} is nowhere"
    return torch.empty(0, dtype=view.dtype, device=storage.device).set_(
        storage, view.offset, view.size, view.stride
    )
