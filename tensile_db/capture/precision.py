"""In what arithmetic a step is captured: PyTorch's autocast, whose casts become ops of the graph.

Under autocast matrix products and convolutions are done in 16 bits, and what needs more range in float32; the
parameters and all that an optimizer keeps stay float32.  A parameter is cast once a step, for all its uses.
float16 has too little range for gradients, so that the loss is scaled (loss_scale.py).
TF32 is no cast: the same graph, whose kernels may shorten float32's fraction where the device has such.

Source: pytorch docs/source/amp.rst; aten/src/ATen/autocast_mode.h.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

import torch

from tensile_db.errors import InvalidRequest
from tensile_db.udf import precision as names


class Precision(StrEnum):
    """What the option "precision" asks for."""

    FLOAT32 = names.FLOAT32
    TF32 = names.TF32
    BFLOAT16 = names.BFLOAT16
    FLOAT16 = names.FLOAT16

    @property
    def scales_loss(self) -> bool:
        """Whether trainings scale their loss."""
        return self is Precision.FLOAT16


#: What autocast casts to.
_CAST_TO = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}


def precision_of(options: Mapping[str, Any]) -> Precision:
    """Return what a request's or a model's options ask for."""
    return Precision(names.precision_name(options))


@contextmanager
def autocast(precision: Precision, device: torch.device) -> Iterator[None]:
    """Have the operators of this thread cast their arguments as eager PyTorch's autocast does.

    Raises InvalidRequest where the device cannot compute so.
    """
    if precision not in _CAST_TO:
        yield
        return
    # Eager's default, which make_fx turns off: one cast for all uses, whose gradients add up in 16 bits.
    try:
        casts = torch.autocast(device.type, dtype=_CAST_TO[precision], cache_enabled=True)
    except RuntimeError as error:
        raise InvalidRequest(
            f"the device {device} does not compute in {precision}: {error}",
            hint='Leave "precision" out of options, or choose another of the workers\' devices: "device".',
        ) from error
    with casts:
        yield
