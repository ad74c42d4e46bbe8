"""What a call returns, put into the blocks as it was captured.

Capture asks an operator's meta function how the result will lie in memory, and a real kernel may choose
otherwise: other strides, or a small result within a large storage.  The values are the same, so they are
copied, and every later call finds the strides that it was captured with.  Eager PyTorch passes the other
layout on; a later kernel that adds up in another order for another layout may then differ from it in the
last bits.

Source: ours.
"""

import logging
from collections.abc import Callable, Sequence

import torch

from tensile_db.capture.step import View
from tensile_db.errors import DeviceOutOfMemory, InvalidPlan
from tensile_db.graph import Op
from tensile_db.worker.devices.accounts import Charges
from tensile_db.worker.devices.block import Block
from tensile_db.worker.devices.device import Device
from tensile_db.worker.devices.recording import Recording
from tensile_db.worker.execution.job_memory import view_of

log = logging.getLogger(__name__)

#: Takes a call's results; those in the list are replaced where they lie otherwise than was captured.
Keep = Callable[[list[torch.Tensor]], None]


def keeper(
    op: Op,
    outputs: Sequence[View | None],
    blocks: Sequence[Block],
    slots: list[torch.Tensor],
    places: Sequence[int | None],
    relayout: "Relayout",
) -> Keep | None:
    """Return a function that puts a call's results into the blocks, and the tensors into their slots.

    None where the call only updates its arguments.
    outputs: for each result the view that was captured, None where nobody reads it; blocks: by tensor id;
    places: in `slots`, for each result.
    The function raises InvalidPlan where a result is not what was captured; then nothing is kept.
    """
    made = [
        (position, view, blocks[view.tensor], place)
        for position, (view, place) in enumerate(zip(outputs, places, strict=True))
        if view is not None and place is not None
    ]
    unchecked = True

    def keep(results: list[torch.Tensor]) -> None:
        nonlocal unchecked
        storages = []
        for position, view, block, _ in made:
            result = results[position]
            storage = result.untyped_storage()
            if unchecked or result.stride() != view.stride or storage.nbytes() != block.nbytes:
                del result, storage
                relayout.fit(op, view, block.nbytes, results, position)
                storage = results[position].untyped_storage()
            storages.append(storage)
        if unchecked:
            _require_apart(op, storages)
            unchecked = False
        for (position, _, block, place), storage in zip(made, storages, strict=True):
            if block.storage is not None:
                block.forget_storage()
            block.storage = storage
            slots[place] = results[position]

    return keep if made else None


class Relayout:
    """Lays results out as they were captured, within a job's account."""

    def __init__(self, device: Device | Recording, account: Charges) -> None:
        self._device = device
        self._account = account
        #: Ops whose layout was told of.
        self._told: set[int] = set()

    def fit(self, op: Op, view: View, nbytes: int, results: list[torch.Tensor], position: int) -> None:
        """Replace a result by one that lies in a storage of `nbytes` as `view` does, unless it does already.

        Raises InvalidPlan where its shape or dtype is another one.
        """
        result = results[position]
        if result.dtype != view.dtype or tuple(result.shape) != view.size:
            raise InvalidPlan(
                f"op {op.id} ({op.target}) made tensor {view.tensor} as {_named(result.dtype, result.shape)},"
                f" but {_named(view.dtype, view.size)} was captured"
            )
        storage = result.untyped_storage()
        lies_alike = _lies_alike(view, result.stride())
        if lies_alike and storage.nbytes() == nbytes and result.storage_offset() == view.offset:
            if result.stride() != view.stride:
                # Strides of dimensions of one element say nothing, yet kernels are chosen by them.
                results[position] = view_of(storage, view)
            return
        if any(stride == 0 and size > 1 for stride, size in zip(view.stride, view.size, strict=True)):
            raise InvalidPlan(
                f"op {op.id} ({op.target}) made tensor {view.tensor} with strides {result.stride()},"
                f" but {view.stride} was captured, which nothing can be copied into"
            )
        if lies_alike:
            # Some reductions (mse_loss) return a small result in the large storage of what they reduced: to
            # be taken as the kernel's workspace, which goes now.
            results[position] = self._copied(result, view, nbytes)
            return
        self._tell(op, view, nbytes, result)
        del result, storage
        # The kernel's workspace is charged still, and free.
        self._copy(view, nbytes, results, position, more_nbytes=max(0, nbytes - op.workspace_nbytes))

    def _copy(
        self, view: View, nbytes: int, results: list[torch.Tensor], position: int, *, more_nbytes: int
    ) -> None:
        """Replace a result by a copy; for a moment both are there, and both are charged.

        more_nbytes: to be charged for that.
        """
        try:
            self._account.charge(more_nbytes)
        except DeviceOutOfMemory:
            # No room for two, then by way of the host: slow, and still the job goes on within its budget.
            on_host = self._device.fetch(results[position]).get()
            del results[position]
            results.insert(position, self._empty(view, nbytes))
            self._device.fill(results[position], on_host)
            return
        try:
            results[position] = self._copied(results[position], view, nbytes)
        finally:
            self._account.release(more_nbytes)

    def _copied(self, result: torch.Tensor, view: View, nbytes: int) -> torch.Tensor:
        return self._empty(view, nbytes).copy_(result)

    def _empty(self, view: View, nbytes: int) -> torch.Tensor:
        return view_of(self._device.allocate(nbytes), view)

    def _tell(self, op: Op, view: View, nbytes: int, result: torch.Tensor) -> None:
        if op.id in self._told:
            return
        self._told.add(op.id)
        log.warning(
            "job %s: op %s (%s) makes tensor %s with strides %s where %s was captured;"
            " its %s bytes are copied in every iteration",
            self._account.job,
            op.id,
            op.target,
            view.tensor,
            result.stride(),
            view.stride,
            nbytes,
        )


def _lies_alike(view: View, stride: Sequence[int]) -> bool:
    """Tell whether elements lie as in the view; a single one's stride says nothing."""
    return all(
        size <= 1 or got == want for size, got, want in zip(view.size, stride, view.stride, strict=True)
    )


def _require_apart(op: Op, storages: Sequence[torch.UntypedStorage]) -> None:
    places = [storage.data_ptr() for storage in storages if storage.nbytes()]
    if len(set(places)) < len(places):
        raise InvalidPlan(f"op {op.id} ({op.target}) made results that share a storage")


def _named(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
