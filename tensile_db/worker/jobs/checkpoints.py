"""A job's state as rows, so that another attempt goes on bit for bit.

What is kept: every persistent tensor (parameters, buffers, optimizer state), the generator's state, the
iteration, and what had been summed up of the epoch under way; and the weights of the best epoch, where they
may become the result (early_stopping.py).
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from sqlalchemy import Connection

from tensile_db.catalog import checkpoints
from tensile_db.catalog.tensors import StoredTensor
from tensile_db.worker.jobs.job import Job

#: What the names of the best epoch's tensors begin with, beside those of the state.
_BEST = "best/"
#: Bytes of tensors written in one transaction, so that none is long.
_TRANSACTION_NBYTES = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a training is, beyond its tensors."""

    #: Iterations done.
    iteration: int = 0
    #: Of these, how many updated nothing, for their gradients were not finite (loss_scale.py).
    skipped: int = 0
    #: By what the next iteration multiplies its loss; None where losses are not scaled.
    loss_scale: float | None = None
    #: Of the last iteration's gradients before they were clipped; None where they are not, or it is infinite.
    gradient_norm: float | None = None
    #: Sum of the losses of the epoch under way, and how many they are.
    loss_sum: float = 0.0
    loss_count: int = 0
    #: The epoch that has just ended was validated, where the iteration is an epoch's last.
    validated: bool = True
    #: Metrics of the last epoch that has ended, by name.
    metrics: Mapping[str, float] | None = None
    #: The best epoch, and its metrics by name, where the training has a patience; 0 and None: none so far.
    best_epoch: int = 0
    best_metrics: Mapping[str, float] | None = None
    #: Time spent training by all attempts.
    seconds: float = 0.0
    #: Digest of the rows that are trained on.
    rows: str = ""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where to go on."""

    progress: Progress
    #: By name, on the host.
    state: dict[str, torch.Tensor]
    random_state: torch.Tensor
    #: The model of the best epoch, by name; empty where there is none.
    best_weights: Mapping[str, torch.Tensor] = field(default_factory=dict)


class CheckpointSchedule:
    """When the next checkpoint is due: every so many iterations, or seconds, whichever comes first."""

    def __init__(self, *, iterations: int | None, seconds: float) -> None:
        self._iterations = iterations
        self._seconds = seconds
        self._last_iteration = 0
        self._last_s = time.monotonic()
        self._cost_s = 0.0

    def begin(self, iteration: int) -> None:
        """Count from here."""
        self._last_iteration = iteration
        self._last_s = time.monotonic()

    def is_due(self, iteration: int) -> bool:
        """Whether a checkpoint should be made after this many iterations."""
        if self._iterations is not None and iteration - self._last_iteration >= self._iterations:
            return True
        # One that takes long must not come so often that the job does little else.
        return time.monotonic() - self._last_s >= max(self._seconds, 10 * self._cost_s)

    def made(self, iteration: int, *, cost_s: float) -> None:
        """Count from here, knowing what one costs."""
        self._cost_s = cost_s
        self.begin(iteration)


def save(job: Job, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; waits for the database where it is away.

    Raises LostLease, and Stopped where nothing of the job is to be kept any more.
    """
    fence, progress = job.records.fence, checkpoint.progress
    begun = job.records.must(
        lambda conn: checkpoints.begin(
            conn,
            fence,
            iteration=progress.iteration,
            random_state=checkpoint.random_state.numpy().tobytes(),
            detail=_told(progress),
        )
    )
    best = {_BEST + name: value for name, value in checkpoint.best_weights.items()}
    for group in _groups(to_stored(checkpoint.state | best)):
        if job.must_break_off():
            raise job.break_off_reason()
        job.records.must(partial(_write, begun, group))
    job.records.must(lambda conn: checkpoints.complete(conn, fence, begun, iteration=progress.iteration))
    job.records.must(lambda conn: checkpoints.remove_older(conn, fence.job, begun))


def load(conn: Connection, job: int) -> Checkpoint | None:
    """Return where a job is to go on; None where it starts from the beginning."""
    row = checkpoints.newest(conn, job)
    if row is None:
        return None
    with checkpoints.read(conn, row.id) as stored:
        tensors = from_stored(stored)
    best = {name: tensors.pop(name) for name in sorted(tensors) if name.startswith(_BEST)}
    return Checkpoint(
        progress=Progress(**row.detail),
        state=tensors,
        random_state=torch.frombuffer(bytearray(row.random_state), dtype=torch.uint8),
        best_weights={name.removeprefix(_BEST): value for name, value in best.items()},
    )


def to_stored(state: Mapping[str, torch.Tensor]) -> Iterator[StoredTensor]:
    """Yield host tensors as bytes, by name; elements in row-major order, whatever the layout in memory."""
    for name in sorted(state):
        tensor = state[name].detach().contiguous()
        yield StoredTensor(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            # A view as bytes needs one dimension at least.
            data=tensor.reshape(-1).view(torch.uint8).numpy()
            if tensor.numel()
            else np.empty(0, dtype=np.uint8),
        )


def from_stored(stored: Iterable[StoredTensor]) -> dict[str, torch.Tensor]:
    """Return tensors from their bytes, by name."""
    return {tensor.name: _tensor(tensor) for tensor in stored}


def _told(progress: Progress) -> dict[str, Any]:
    """Return what of a progress is not as at first: workers of older versions know less of it."""
    first = asdict(Progress())
    return {name: value for name, value in asdict(progress).items() if value != first[name]}


def _write(checkpoint: int, group: list[StoredTensor], conn: Connection) -> None:
    checkpoints.write(conn, checkpoint, group)


def _tensor(stored: StoredTensor) -> torch.Tensor:
    dtype: Any = getattr(torch, stored.dtype)
    assert isinstance(dtype, torch.dtype)
    if not stored.data.size:
        # Nothing cannot be seen as elements of another size.
        return torch.empty(stored.shape, dtype=dtype)
    return torch.from_numpy(stored.data).view(dtype).reshape(stored.shape)


def _groups(tensors: Iterable[StoredTensor]) -> Iterator[list[StoredTensor]]:
    group: list[StoredTensor] = []
    nbytes = 0
    for tensor in tensors:
        group.append(tensor)
        nbytes += tensor.data.nbytes
        if nbytes >= _TRANSACTION_NBYTES:
            yield group
            group, nbytes = [], 0
    if group:
        yield group
