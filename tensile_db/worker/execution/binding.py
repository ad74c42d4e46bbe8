"""A step bound to blocks, an account and a device: each instruction becomes a function without arguments.

Source: TENSILE section III-D (Executor).
"""

from collections.abc import Callable, Sequence
from typing import Any, assert_never

import numpy as np
import torch

from tensile_db.capture.step import CapturedStep, View
from tensile_db.graph import Op, OpId
from tensile_db.scheduler.program import Await, Compute, CopyIn, CopyOut, Free, Instruction
from tensile_db.worker.devices.accounts import Charges
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.recording import Recording
from tensile_db.worker.devices.under_way import Fetched
from tensile_db.worker.execution.calls import Kernel, Values, compile_call
from tensile_db.worker.execution.results import Relayout
from tensile_db.worker.execution.swapper import Swapper

Batch = Sequence[np.ndarray | torch.Tensor]


class Binding:
    """Used by the job's thread only."""

    def __init__(
        self,
        step: CapturedStep,
        blocks: Sequence[Block],
        *,
        device: Device | Recording,
        account: Charges,
        swapper: Swapper,
        generator: torch.Generator,
        in_float32: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """blocks: by tensor id; account: charged before anything is allocated; generator: the job's.

        in_float32: what the device makes of a function so that it computes float32 as the job wants.
        """
        self.values = Values(blocks)
        #: Of this iteration.
        self.batch: Batch = ()
        #: By name, of this iteration.
        self.outputs: dict[str, Fetched] = {}
        self._step = step
        self._blocks = blocks
        self._device = device
        self._account = account
        self._swapper = swapper
        self._generator = generator
        self._in_float32 = in_float32
        self._relayout = Relayout(device, account)
        self._kernels: dict[tuple[OpId, bool], Kernel] = {}

    def close(self) -> None:
        """Stop watching blocks that outlive the step."""
        self.values.close()
        self._kernels.clear()

    def compile(self, instruction: Instruction) -> tuple[int, Callable[[], None]]:
        """Return the op whose first run it is, else -1, and what carries the instruction out."""
        swapper = self._swapper
        match instruction:
            case Compute(op=op, recompute=recompute):
                return (-1 if recompute else op), self._compute(self._step.graph.ops[op], again=recompute)
            case CopyOut(tensor=tensor, delta_ns=delta_ns):
                return -1, _bound(swapper.copy_out, self._blocks[tensor], delta_ns)
            case CopyIn(tensor=tensor, delta_ns=delta_ns):
                return -1, _bound(swapper.copy_in, self._blocks[tensor], delta_ns)
            case Await(tensor=tensor):
                return -1, _bound(swapper.settle, self._blocks[tensor])
            case Free(tensor=tensor):
                return -1, _bound(swapper.drop, self._blocks[tensor])
            case _:
                assert_never(instruction)

    def place(self, op: Op, allocate: Callable[[int], torch.UntypedStorage]) -> None:
        """Do an op's bookkeeping without running it; what it makes gets memory that `allocate` returns."""
        made_blocks = [self._blocks[view.tensor] for view in self._made(op)]

        def make() -> None:
            for block in made_blocks:
                block.storage = allocate(block.nbytes)

        self._within_account(op, make, again=False)()

    def _made(self, op: Op) -> Sequence[View]:
        if op.target == "tensile.load_batch":
            return self._step.inputs
        return tuple(view for view in self._step.calls[op.id].outputs if view is not None)

    def _compute(self, op: Op, *, again: bool) -> Callable[[], None]:
        match op.target:
            case "tensile.load_batch":
                kernel = self._load_batch
            case "tensile.report":
                kernel = self._report
            case _:
                kernel = self._kernel(op, again=again)
        return self._within_account(op, kernel, again=again)

    def _within_account(self, op: Op, kernel: Kernel, *, again: bool) -> Callable[[], None]:
        """Return the step that runs a kernel of an op within the account."""
        made_blocks = [self._blocks[view.tensor] for view in self._made(op)]
        updated = [
            block
            for block in (self._blocks[tensor] for tensor in op.writes)
            if block not in made_blocks and not (again and block.persistent)
        ]
        charged_nbytes = sum(block.nbytes for block in made_blocks) + op.workspace_nbytes
        workspace_nbytes = op.workspace_nbytes
        charge, release = self._account.charge, self._account.release
        swapper, drop_host = self._swapper, self._swapper.drop_host

        def compute() -> None:
            swapper.waiting_since_ns = None
            for block in updated:
                if block.host is not None:
                    drop_host(block)
            # A second run makes anew also what is there still; the first value goes when the run has ended.
            replaced_nbytes = sum([block.nbytes for block in made_blocks if block.storage is not None])
            charge(charged_nbytes)
            try:
                kernel()
            except BaseException:
                release(charged_nbytes)
                raise
            if workspace_nbytes or replaced_nbytes:
                release(workspace_nbytes + replaced_nbytes)

        return compute

    def _kernel(self, op: Op, *, again: bool) -> Kernel:
        # Kept from plan to plan: a new one uses the same calls.
        key = (op.id, again)
        if key not in self._kernels:
            self._kernels[key] = compile_call(
                op,
                self._step.calls[op.id],
                self.values,
                self._generator,
                self._relayout,
                device=self._device,
                default_generator=self._device.default_generator,
                in_float32=self._in_float32,
                again=again,
            )
        return self._kernels[key]

    def _load_batch(self) -> None:
        views = self._step.inputs
        assert len(self.batch) == len(views), f"a batch of {len(self.batch)} arrays for {len(views)} inputs"
        for view, source in zip(views, self.batch, strict=True):
            assert tuple(source.shape) == view.size, f"a batch of shape {source.shape} for {view.size}"
        blocks = [self._blocks[view.tensor] for view in views]
        try:
            for block, view, source in zip(blocks, views, self.batch, strict=True):
                block.storage = self._device.allocate(block.nbytes)
                self._device.fill(self.values.get(view), source)
        except BaseException:
            for block in blocks:
                block.forget_storage()
            raise

    def _report(self) -> None:
        for name, view in self._step.outputs.items():
            self.outputs[name] = self._device.fetch(self.values.get(view))


def _bound(function: Callable[..., None], *args: Any) -> Callable[[], None]:
    def call() -> None:
        function(*args)

    return call
