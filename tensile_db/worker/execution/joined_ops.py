"""A recording's updates that are handed over as one: ops that `gathered_updates.py` has brought together.

Source: ours.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from tensile_db.capture.step import CapturedStep, View
from tensile_db.graph import Op, OpId
from tensile_db.scheduler.program import Compute
from tensile_db.scheduler.sharing.gathered_updates import Gathered
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.recording import Recording
from tensile_db.worker.execution.binding import Binding
from tensile_db.worker.execution.device_failures import op_failure
from tensile_db.worker.execution.joined_calls import JoinableCall, joinable
from tensile_db.worker.execution.passages import Passage


@dataclass(frozen=True, slots=True)
class _JoinedOp:
    #: In the program.
    place: int
    op: Op
    call: JoinableCall


class JoinedOps:
    """A recording's updates that are carried out together.  Used by the job's thread only."""

    def __init__(self) -> None:
        """There are none before they are found."""
        self._groups: list[list[_JoinedOp]] = []
        #: How many ops are taken down with others.
        self.count = 0

    def find(
        self, step: CapturedStep, gathered: Gathered, device: Device, *, but_not: Collection[OpId]
    ) -> None:
        """Find the ops; the caller computes on the device, on which it is tried once a process.

        but_not: ops that are carried out in another way.
        Raises what a device without memory or kernels fails with.
        """
        for begin, end in gathered.rows:
            alike: dict[object, list[_JoinedOp]] = defaultdict(list)
            for place in range(begin, end):
                instruction = gathered.program.instructions[place]
                assert isinstance(instruction, Compute), "rows are of ops"
                op = instruction.op
                call = None if op in but_not else joinable(step.calls[op], device.torch_device)
                if call is not None:
                    alike[call.kind].append(_JoinedOp(place, step.graph.ops[op], call))
            self._groups += [group for group in alike.values() if len(group) > 1]

    def put_into(
        self,
        steps: list[Callable[[], None]],
        passage: Passage,
        binding: Binding,
        tensor_of: Callable[[View], torch.Tensor],
        recording: Recording,
    ) -> None:
        """Have the first of ops that go together take all of them down; steps: the passage's instructions."""
        for group in self._groups:
            inside = [joined for joined in group if passage.begin <= joined.place < passage.end]
            if len(inside) < 2:
                continue
            for joined in inside:
                steps[joined.place - passage.begin] = _nothing
            first = inside[0].place - passage.begin
            steps[first] = partial(_take_down, inside, binding, tensor_of, recording)
            self.count += len(inside)


def _nothing() -> None:
    pass


def _take_down(
    group: Sequence[_JoinedOp],
    binding: Binding,
    tensor_of: Callable[[View], torch.Tensor],
    recording: Recording,
) -> None:
    """Do the bookkeeping of ops, and take down what stands in for them."""
    for joined in group:
        binding.place(joined.op, recording.allocate)
    calls = [joined.call for joined in group]
    tensors = [[tensor_of(view) for view in views] for views in zip(*(c.tensors for c in calls), strict=True)]
    results = [tensor_of(call.result) for call in calls]
    try:
        calls[0].variant.run(tensors, calls[0].numbers, results)
    except Exception as error:
        raise op_failure(group[0].op, error, recording) from error
