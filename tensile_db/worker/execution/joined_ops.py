"""A recording's updates that are handed over as one: ops that `gathered_updates.py` has brought together.

Source: ours.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial

from tensile_db.capture.step import CapturedStep
from tensile_db.graph import Op
from tensile_db.scheduler.program import Compute
from tensile_db.scheduler.sharing.gathered_updates import Gathered
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.recording import Recording
from tensile_db.worker.execution.binding import Binding
from tensile_db.worker.execution.device_failures import op_failure
from tensile_db.worker.execution.fixed_calls import TensorOf, by_argument
from tensile_db.worker.execution.held_ops import HeldOps
from tensile_db.worker.execution.joined_calls import JoinableCall, joinable
from tensile_db.worker.execution.passages import Passage
from tensile_db.worker.execution.recording_swapper import HighWater


@dataclass(frozen=True, slots=True)
class _JoinedOp:
    #: In the program.
    place: int
    op: Op
    #: None: it is one of `HeldOps`.
    call: JoinableCall | None


class JoinedOps:
    """A recording's updates that are carried out together.  Used by the job's thread only."""

    def __init__(self, held_ops: HeldOps) -> None:
        """There are none before they are found.

        held_ops: those whose numbers lie in the recording's memory.
        """
        self._held_ops = held_ops
        self._groups: list[list[_JoinedOp]] = []
        #: How many ops are taken down with others.
        self.count = 0

    def find(self, step: CapturedStep, gathered: Gathered, device: Device) -> None:
        """Find the ops; the caller computes on the device, on which it is tried once a process.

        Held ops have been found before.  Raises what a device without memory or kernels fails with.
        """
        for begin, end in gathered.rows:
            alike: dict[Hashable, list[_JoinedOp]] = defaultdict(list)
            for place in range(begin, end):
                instruction = gathered.program.instructions[place]
                assert isinstance(instruction, Compute), "rows are of ops"
                op = instruction.op
                if op in self._held_ops.ops:
                    call, kind = None, self._held_ops.kind(op)
                else:
                    call = joinable(step.calls[op], device.torch_device)
                    kind = None if call is None else call.kind
                if kind is not None:
                    alike[kind].append(_JoinedOp(place, step.graph.ops[op], call))
            self._groups += [group for group in alike.values() if len(group) > 1]

    def put_into(
        self,
        steps: list[Callable[[], None]],
        passage: Passage,
        binding: Binding,
        tensor_of: TensorOf,
        recording: Recording,
        account: HighWater,
    ) -> None:
        """Have the first of ops that go together take all of them down; steps: the passage's instructions."""
        for group in self._groups:
            inside = [joined for joined in group if passage.begin <= joined.place < passage.end]
            if len(inside) < 2:
                continue
            for joined in inside:
                steps[joined.place - passage.begin] = _nothing
            first = inside[0]
            ops = [joined.op.id for joined in inside]
            steps[first.place - passage.begin] = (
                partial(self._held_ops.take_down_together, ops, binding, tensor_of, recording, account)
                if first.call is None
                else partial(_take_down, inside, binding, tensor_of, recording)
            )
            self.count += len(inside)


def _nothing() -> None:
    pass


def _take_down(
    group: Sequence[_JoinedOp], binding: Binding, tensor_of: TensorOf, recording: Recording
) -> None:
    """Do the bookkeeping of ops, and take down what stands in for them."""
    for joined in group:
        binding.place(joined.op, recording.allocate)
    calls = [joined.call for joined in group if joined.call is not None]
    tensors = by_argument((call.tensors for call in calls), tensor_of)
    results = [tensor_of(call.result) for call in calls]
    try:
        calls[0].variant.run(tensors, calls[0].numbers, results)
    except Exception as error:
        raise op_failure(group[0].op, error, recording) from error
