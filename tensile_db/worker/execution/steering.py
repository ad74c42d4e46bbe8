"""Has what a program's instructions allocate come where it was worked out ahead, while they are taken down.

Source: ours; scheduler/sharing/recorded_memory.py for where that is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tensile_db.graph import StepGraph, TensorId
from tensile_db.scheduler.program import Program
from tensile_db.scheduler.sharing.addresses import is_large
from tensile_db.scheduler.sharing.growing_range import asked_by_instructions
from tensile_db.scheduler.sharing.recorded_memory import SteeredRange
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.recording import Recording
from tensile_db.worker.devices.steered_memory import SteeredMemory, Wanted


class Steering:
    """Steers the allocations of one recording.  Used by the job's thread only, while it takes down."""

    def __init__(
        self,
        graph: StepGraph,
        program: Program,
        wanted: SteeredRange,
        recording: Recording,
        blocks: Sequence[Block],
    ) -> None:
        """graph: the program's; recording: in which there is nothing large yet; blocks: by tensor id.

        Raises what a device without memory fails with.
        """
        addresses = iter(wanted.addresses)
        #: By instruction: who asks for memory, and where it is wanted.
        self._asked = [
            [(each, next(addresses) if each.takes else 0) for each in asked if is_large(each.nbytes)]
            for asked in asked_by_instructions(graph, program)
        ]
        self._blocks = blocks
        self._memory = SteeredMemory(recording.allocate, wanted.nbytes)
        # Behind the range, not where something is opened for an op.
        recording.take_library_workspaces()

    @property
    def astray(self) -> int:
        """How often memory came elsewhere than it was steered."""
        return self._memory.astray

    @contextmanager
    def instruction(self, index: int) -> Iterator[None]:
        """Have come to its place what is allocated within, by the instruction or for it, the first time."""
        asked, self._asked[index] = self._asked[index], []
        if not asked:
            yield
            return
        taken = [
            Wanted(address, each.nbytes, each.holder is not None) for each, address in asked if each.takes
        ]
        with self._memory.opened(taken):
            yield
            for each, _ in asked:
                if each.takes and each.holder is not None:
                    self._memory.note(each.holder, self._address_of(each.holder[0]), each.nbytes)
        for each, _ in asked:
            if not each.takes and each.holder is not None:
                self._memory.let_go(each.holder)

    def close(self) -> None:
        """Let go of all that is free."""
        self._memory.release()

    def _address_of(self, tensor: TensorId) -> int | None:
        storage = self._blocks[tensor].storage
        return None if storage is None else storage.data_ptr()
