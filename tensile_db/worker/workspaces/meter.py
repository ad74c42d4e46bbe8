"""Runs ops of a step apart, on tensors of their own, to see what their kernels hold beyond them.

The tensors lie as the job's will; what is in them is of no interest, but that indices must be valid: whole
numbers are 0.  An op runs first without being watched, for libraries are loaded, handles are made and kernels
are chosen by a first call; what is kept from then on, e.g. cuBLAS's workspace of each thread, is no op's.

Source: ours.
"""

import logging
from collections.abc import Collection, Sequence
from functools import partial

import torch

from tensile_db.capture.builder import views
from tensile_db.capture.step import CapturedStep, View
from tensile_db.errors import DeviceOutOfMemory, DriverOutOfMemory, InvalidPlan, KernelFailed
from tensile_db.graph import Op, OpId, TensorId
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.device import Device
from tensile_db.worker.execution.calls import Values, compile_call
from tensile_db.worker.execution.device_failures import device_failures
from tensile_db.worker.execution.results import Relayout
from tensile_db.worker.messages import JobId

log = logging.getLogger(__name__)

#: No job has it.
_NOBODY = JobId(0)
#: Runs that are watched, of which the most counts.
_WATCHED = 2
#: Zeros are handed over in pieces of so many bytes, so that the host need not hold as many as the tensor has.
_PIECE_NBYTES = 2**24


class WorkspaceMeter:
    """The ops of one step on one device, while nobody else is at work there.  Used by one thread."""

    def __init__(self, step: CapturedStep, device: Device, *, room_nbytes: int) -> None:
        """Open an account of its own; room_nbytes: what tensors may take."""
        self._step = step
        self._device = device
        self._account = device.memory.open_account(_NOBODY, room_nbytes)
        self._blocks = [
            Block(name=tensor.name, nbytes=tensor.nbytes, persistent=False) for tensor in step.graph.tensors
        ]
        self._values = Values(self._blocks)
        self._generator = torch.Generator(device.torch_device).manual_seed(0)

    def close(self) -> None:
        """End the account."""
        self._values.close()
        self._account.close()

    def workspace_nbytes(self, op_id: OpId) -> int | None:
        """Return the most that an op's kernels hold beyond its tensors, in bytes; None: it cannot be told.

        That is so where there is no room for its tensors or for the workspace itself, and where the op fails
        with nothing but zeros.  Raises DeviceLost.
        """
        op, call = self._step.graph.ops[op_id], self._step.calls[op_id]
        given = list(views((call.args, call.kwargs, call.recompute_args)))
        made = {view.tensor for view in call.outputs if view is not None}
        touched = {view.tensor for view in given} | made
        needed_nbytes = sum(self._blocks[tensor].nbytes for tensor in touched)
        try:
            self._account.charge(needed_nbytes)
        except DeviceOutOfMemory:
            return None
        try:
            with device_failures(self._device), self._device.computing():
                self._make(given)
                ways = (False,) if call.recompute_args is None else (False, True)
                return max(self._most_nbytes(op, made, again=again) for again in ways)
        except (DriverOutOfMemory, InvalidPlan, KernelFailed) as error:
            # What is wrong with it shows when the job runs it.
            log.warning("the workspace of op %s (%s) is not known: %s", op.id, op.target, error.message)
            return None
        finally:
            for tensor in touched:
                self._blocks[tensor].forget_storage()
            self._account.release(needed_nbytes)

    def _make(self, given: Sequence[View]) -> None:
        """Allocate what an op is given."""
        for view in given:
            block = self._blocks[view.tensor]
            if block.storage is None:
                block.storage = self._device.allocate(block.nbytes)
        for view in given:
            if not (view.dtype.is_floating_point or view.dtype.is_complex):
                self._fill_with_zeros(self._blocks[view.tensor].storage)

    def _fill_with_zeros(self, storage: torch.UntypedStorage | None) -> None:
        assert storage is not None
        whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        for begin in range(0, whole.numel(), _PIECE_NBYTES):
            piece = whole[begin : begin + _PIECE_NBYTES]
            self._device.fill(piece, torch.zeros(piece.numel(), dtype=torch.uint8))

    def _most_nbytes(self, op: Op, made: Collection[TensorId], *, again: bool) -> int:
        kernel = compile_call(
            op,
            self._step.calls[op.id],
            self._values,
            self._generator,
            Relayout(self._device, self._account),
            device=self._device,
            default_generator=self._device.default_generator,
            in_float32=partial(self._device.in_float32, tf32=self._step.tf32),
            again=again,
        )
        self._values.set_scalars(self._step.scalars(1))
        results_nbytes = sum(self._blocks[tensor].nbytes for tensor in made)

        def run() -> None:
            kernel()
            for tensor in made:
                self._blocks[tensor].forget_storage()

        run()
        most_nbytes = 0
        for _ in range(_WATCHED):
            self._device.watch_memory()
            run()
            most_nbytes = max(most_nbytes, self._device.watched_nbytes() - results_nbytes)
        return most_nbytes
