"""A recording's ops that take numbers that change: those whose numbers lie in the recording's memory.

Source: ours.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from tensile_db.capture.step import CapturedStep, Scalar, View
from tensile_db.graph import Op, OpId
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.recording import Recording
from tensile_db.worker.execution.binding import Binding
from tensile_db.worker.execution.device_failures import op_failure
from tensile_db.worker.execution.fixed_calls import TensorOf, by_argument
from tensile_db.worker.execution.held_numbers import HeldVariant, held_variant, is_holdable
from tensile_db.worker.execution.job_memory import view_of
from tensile_db.worker.execution.joined_held_calls import JoinedHeldVariant, joined_held_variant
from tensile_db.worker.execution.recording_swapper import HighWater


@dataclass(frozen=True, slots=True)
class _HeldOp:
    op: Op
    variant: HeldVariant
    #: How it is carried out with others; None: it is not.
    joined: JoinedHeldVariant | None
    #: The call's, in order.
    tensors: tuple[View, ...]
    #: Where the result goes: a new tensor, or the first one.
    result: View
    #: The place of its number.
    place: int


class HeldOps:
    """Ops of one recording, and their numbers.  Used by the job's thread only."""

    def __init__(self) -> None:
        """There are none before they are found."""
        #: By place: the number's name, and what is held for it.
        self._numbers: list[tuple[str, Callable[[float], np.float32]]] = []
        self._ops: dict[OpId, _HeldOp] = {}
        self._memory: torch.Tensor | None = None

    def find(self, step: CapturedStep, device: Device) -> None:
        """Find the ops; the caller computes on the device, on which their ways are tried once a process.

        Raises what a device without memory or kernels fails with.
        """
        for op, call in zip(step.graph.ops, step.calls, strict=True):
            if call.function is None or not is_holdable(call):
                continue
            variant = held_variant(call.function, device.torch_device)
            if variant is None:
                continue
            arguments = (*call.args, *call.kwargs.values())
            tensors = tuple(each for each in arguments if isinstance(each, View))
            (name,) = (each.name for each in arguments if isinstance(each, Scalar))
            number = (name, variant.held)
            if number not in self._numbers:
                self._numbers.append(number)
            self._ops[op.id] = _HeldOp(
                op=op,
                variant=variant,
                joined=joined_held_variant(call.function, variant, device.torch_device),
                tensors=tensors,
                result=call.outputs[0] or tensors[0],
                place=self._numbers.index(number),
            )

    @property
    def ops(self) -> Collection[OpId]:
        """The ops."""
        return self._ops.keys()

    def kind(self, op: OpId) -> Hashable:
        """Return what ops share that are carried out together; None: it is carried out by itself."""
        held = self._ops[op]
        return None if held.joined is None else (held.op.target, held.place)

    def place(self, recording: Recording, account: HighWater) -> None:
        """Take memory for the numbers, until `close`."""
        if not self._numbers:
            return
        nbytes = len(self._numbers) * torch.float32.itemsize
        account.charge(nbytes)
        storage = recording.allocate(nbytes)
        self._memory = torch.empty(0, dtype=torch.float32, device=storage.device).set_(storage)

    def load(self, scalars: Mapping[str, float], device: Device) -> None:
        """Give the device an iteration's numbers, for what it is handed from now on."""
        if self._memory is not None:
            numbers = [held(scalars[name]) for name, held in self._numbers]
            device.fill(self._memory, np.array(numbers, np.float32))

    def take_down(
        self, op: OpId, binding: Binding, tensor_of: TensorOf, recording: Recording, account: HighWater
    ) -> None:
        """Do an op's bookkeeping, and take down what stands in for it."""
        held = self._ops[op]
        binding.place(held.op, recording.allocate)
        out = tensor_of(held.result)
        beside, beside_nbytes = out, 0
        if held.variant.wants_memory and held.result is held.tensors[0]:
            like = replace(held.result, offset=0)
            beside_nbytes = _extent_nbytes(like)
            account.charge(beside_nbytes)
            beside = view_of(recording.allocate(beside_nbytes), like)
        try:
            held.variant.run([tensor_of(view) for view in held.tensors], self._number_of(held), out, beside)
        except Exception as error:
            raise op_failure(held.op, error, recording) from error
        account.release(beside_nbytes)

    def take_down_together(
        self,
        ops: Sequence[OpId],
        binding: Binding,
        tensor_of: TensorOf,
        recording: Recording,
        account: HighWater,
    ) -> None:
        """Do the bookkeeping of ops of one kind, and take down what stands in for them."""
        all_held = [self._ops[op] for op in ops]
        first = all_held[0]
        assert first.joined is not None, "each of these is carried out by itself"
        for held in all_held:
            binding.place(held.op, recording.allocate)
        tensors = by_argument((held.tensors for held in all_held), tensor_of)
        results = [tensor_of(held.result) for held in all_held]
        likes = [replace(held.result, offset=0) for held in all_held]
        beside_nbytes = first.joined.memory_count * sum(map(_extent_nbytes, likes))
        account.charge(beside_nbytes)
        memory = [
            [view_of(recording.allocate(_extent_nbytes(like)), like) for like in likes]
            for _ in range(first.joined.memory_count)
        ]
        try:
            first.joined.run(tensors, self._number_of(first), results, memory)
        except Exception as error:
            raise op_failure(first.op, error, recording) from error
        account.release(beside_nbytes)

    def _number_of(self, held: _HeldOp) -> torch.Tensor:
        assert self._memory is not None, "numbers have their memory before ops are taken down"
        return self._memory[held.place]

    def close(self) -> None:
        """Let the memory go."""
        self._memory = None


def _extent_nbytes(view: View) -> int:
    """Return the bytes from a view's beginning to its end."""
    if 0 in view.size:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(view.size, view.stride, strict=True))
    return (last + 1) * view.dtype.itemsize
