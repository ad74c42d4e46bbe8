"""Tells when a training stops, for rows that are held out are predicted no better, and which epoch was best.

After so many epochs, its patience, of which none has a smaller validation loss than the best one before, a
training is over, and the best epoch's weights are its result.  A loss that is no number is never the best.

Source: Goodfellow, Bengio and Courville, Deep Learning (2016), algorithm 7.1.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from tensile_db.capture.state import is_of_model
from tensile_db.errors import InvalidRequest
from tensile_db.worker.jobs.checkpoints import Progress

_LOSS = "validation_loss"


def require_rows_held_out(count: int) -> None:
    """Refuse a training that would have nothing to stop by.  Raises InvalidRequest."""
    if not count:
        raise InvalidRequest(
            'no row is held out, and so nothing tells when the "patience" is at its end',
            hint='Use a source with more rows, or a larger validation; or leave out the option "patience".',
        )


def with_epoch(progress: Progress, metrics: Mapping[str, float], epoch: int) -> Progress:
    """Return the progress with an epoch that has ended: the same object where that is no better.

    metrics: of the epoch, by name.
    """
    loss = metrics.get(_LOSS, math.nan)
    if not math.isfinite(loss) or (progress.best is not None and loss >= progress.best["metrics"][_LOSS]):
        return progress
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    return replace(progress, best={"epoch": epoch, "metrics": finite})


def is_over(progress: Progress, epochs: int, patience: int | None) -> bool:
    """Whether a training stops after so many whole epochs."""
    best = 0 if progress.best is None else progress.best["epoch"]
    return patience is not None and epochs - best >= patience


def weights_of(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what a model is made of, of a training's state by name."""
    return {name: value for name, value in state.items() if is_of_model(name)}
