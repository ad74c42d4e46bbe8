"""Tells when a training stops, for rows that are held out are predicted no better, and which epoch was best.

After so many epochs, its patience, of which none has a smaller validation loss than the best one before, a
training is over, and the best epoch's weights are its result.  A loss that is no number is never the best.

Source: Goodfellow, Bengio and Courville, Deep Learning (2016), algorithm 7.1.
Differs: a loss is smaller only where it is so by more than rounding, which another size of a validation's
batches changes.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from tensile_db.errors import InvalidRequest
from tensile_db.udf.options import check_option
from tensile_db.worker.jobs import losses
from tensile_db.worker.jobs.checkpoints import Progress

_LOSS = "validation_loss"
#: A smaller loss is less than so many times the best one.
_SMALLER = 1 - 1e-6


def check_patience(patience: object, held_out: int) -> None:
    """Refuse what is no patience, and one without rows held out, which would have nothing to stop by.

    patience: whole epochs, None for none.  Raises InvalidRequest.
    """
    if patience is None:
        return
    # A row may have come into the catalog past the functions.
    check_option("patience", patience)
    if not held_out:
        raise InvalidRequest(
            'no row is held out, and so nothing tells when the "patience" is at its end',
            hint='Use a source with more rows, or a larger validation; or leave out the option "patience".',
        )


def with_epoch(progress: Progress, metrics: Mapping[str, float], epoch: int) -> Progress:
    """Return the progress with an epoch that has ended: the same object where that is no better.

    metrics: of the epoch, by name.
    """
    loss, best = metrics.get(_LOSS, math.nan), progress.best_metrics
    if not math.isfinite(loss) or (best is not None and loss >= _SMALLER * best[_LOSS]):
        return progress
    return replace(progress, best_epoch=epoch, best_metrics=losses.finite(metrics))


def is_over(progress: Progress, epochs: int, patience: int | None) -> bool:
    """Whether a training stops after so many whole epochs."""
    return patience is not None and epochs - progress.best_epoch >= patience
