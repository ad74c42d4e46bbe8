"""What an iteration's outputs say of a training: its loss, and what scaling it came to."""

import math
from collections.abc import Mapping
from dataclasses import replace

import torch

from tensile_db.capture.clipping import GRADIENT_NORM
from tensile_db.capture.loss_scale import LEAST_SCALE, NEXT_SCALE, SKIPPED
from tensile_db.capture.state import role_of
from tensile_db.errors import NonFiniteLoss
from tensile_db.graph import Role
from tensile_db.worker.jobs.checkpoints import Progress

_HINT = "Use a smaller learning_rate, or look for extreme values among the features."


def after_iteration(progress: Progress, outputs: Mapping[str, torch.Tensor], *, when: str) -> Progress:
    """Return the progress with one iteration more; outputs: as the step's; when: names the iteration.

    Where the loss is scaled, an iteration that updated nothing may have had a loss that is not finite: it did
    no harm, the scale is smaller now, and the loss is left out of the epoch's.
    Raises NonFiniteLoss, also where no scale would help any more.
    """
    loss = float(outputs["loss"])
    skipped = SKIPPED in outputs and bool(outputs[SKIPPED])
    if not math.isfinite(loss) and not skipped:
        raise NonFiniteLoss(f"the loss became {loss} in {when}", hint=_HINT)
    if NEXT_SCALE in outputs:
        scale = float(outputs[NEXT_SCALE])
        if skipped and scale < LEAST_SCALE:
            raise NonFiniteLoss(
                f"the gradients are not finite in {when}, and the loss scale falls to {scale:g}",
                hint=f'{_HINT[:-1]}; the precision "bfloat16" has a larger range.',
            )
        progress = replace(progress, loss_scale=scale)
    counts = math.isfinite(loss)
    if GRADIENT_NORM in outputs:
        norm = float(outputs[GRADIENT_NORM])
        progress = replace(progress, gradient_norm=norm if math.isfinite(norm) else None)
    return replace(
        progress,
        iteration=progress.iteration + 1,
        skipped=progress.skipped + skipped,
        loss_sum=progress.loss_sum + (loss if counts else 0.0),
        loss_count=progress.loss_count + counts,
    )


def told_of(outputs: Mapping[str, torch.Tensor]) -> Mapping[str, float]:
    """Return the loss for the job's row; nothing where it is not finite, and what is there stays."""
    loss = float(outputs["loss"])
    return {"loss": loss} if math.isfinite(loss) else {}


def epoch_loss(progress: Progress, *, epoch: int) -> float:
    """Return the mean loss of an epoch that has ended.  Raises NonFiniteLoss where none was finite."""
    if not progress.loss_count:
        raise NonFiniteLoss(f"no loss of epoch {epoch} was finite", hint=_HINT)
    return progress.loss_sum / progress.loss_count


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are numbers, by name."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def require_scored(values: Mapping[str, float]) -> None:
    """Refuse a trained network whose outputs are no numbers; values: metrics of the rows held out, if any.

    Raises NonFiniteLoss.  The last iteration's loss is from before its update, which may be what went wrong.
    """
    # Only the loss tells: in the square of a target's unit there may be no number for what is one itself.
    loss = values.get("loss", 0.0)
    if not math.isfinite(loss):
        raise NonFiniteLoss(f"the validation's loss became {loss} in the last epoch", hint=_HINT)


def require_finite(state: Mapping[str, torch.Tensor]) -> None:
    """Refuse a trained network with a parameter that is not finite, of which no row was held out to tell.

    state: persistent tensors by name.  Raises NonFiniteLoss.
    """
    for name, value in state.items():
        # What a network keeps in buffers may be infinite by intent, as a mask is.
        if role_of(name) is Role.PARAMETER and not value.isfinite().all():
            qualified = name.partition("/")[2]
            raise NonFiniteLoss(
                f'the parameter "{qualified}" is not finite after the last update', hint=_HINT
            )


def gradient_metrics(progress: Progress) -> Mapping[str, float]:
    """Return an epoch's metrics of its gradients, by name: their norm and the loss scale, where there are."""
    found = {}
    if progress.loss_scale is not None:
        found = {"loss_scale": progress.loss_scale, "skipped_updates": float(progress.skipped)}
    if progress.gradient_norm is not None:
        found["gradient_norm"] = progress.gradient_norm
    return found
