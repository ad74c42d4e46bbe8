"""Dynamic loss scaling in the graph, as torch.amp.GradScaler has it: what trains in float16 needs it.

The loss is multiplied by a scale before the backward pass, so that small gradients do not become 0 in
float16.  Each gradient is divided by it again as soon as it is complete, and looked through for what is not
finite.  Where anything is, this iteration updates nothing, and the scale is halved; after 2000 iterations in
a row without, it is doubled.  Scale and count are persistent tensors, and go into checkpoints.

GradScaler has the host decide whether the optimizer runs.  Here the updates are made beside what is there,
and kept where all gradients were finite: the ops are the same in every iteration, and within one the host
waits for nothing.

Where gradients of two parameters are views of one tensor, GradScaler divides both twice, for eager PyTorch
lets them share it; here each is divided once.

Source: torch/amp/grad_scaler.py; Micikevicius et al., "Mixed Precision Training", section 3.2.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.step import View
from tensile_db.graph import Phase, Role

# ruff: noqa: SLF001 - GradScaler's operators have no other names

aten = torch.ops.aten

#: Names of the persistent tensors.
SCALE, GROWTH_TRACKER = "loss_scale/scale", "loss_scale/growth_tracker"

#: Names of the step's outputs: the scale for the next iteration; not 0 where this one updated nothing.
NEXT_SCALE, SKIPPED = "loss_scale", "skipped"

#: A training whose scale falls below this ends: no gradient is so large that training could do with it.
LEAST_SCALE = 1e-4

# GradScaler's defaults.
_FIRST_SCALE = 2.0**16
_GROWTH_FACTOR, _BACKOFF_FACTOR, _GROWTH_INTERVAL = 2.0, 0.5, 2000


def initial_loss_scale() -> dict[str, torch.Tensor]:
    """Return the persistent tensors before the first iteration, by name; no dimensions."""
    return {
        SCALE: torch.full((), _FIRST_SCALE, dtype=torch.float32),
        GROWTH_TRACKER: torch.full((), 0, dtype=torch.int32),
    }


class LossScaling:
    """The ops of one step that unscale gradients, and adjust the scale."""

    def __init__(self, builder: StepBuilder, *, scale: View, growth_tracker: View) -> None:
        self._builder = builder
        self._scale = scale
        self._growth_tracker = growth_tracker
        #: 1 where anything was not finite, and 1 / scale: made when the first gradient is there.
        self._found_inf: View | None = None
        self._inverse: View | None = None

    def unscale(self, gradient: View) -> None:
        """Divide a gradient, which nothing else may share, by the scale in place, and look through it."""
        if self._found_inf is None:
            single, double = torch.float32, torch.float64
            self._found_inf = self._make(
                "found_inf", single, aten.full.default, [], 0.0, dtype=single, device=self._builder.device
            )
            # GradScaler takes the reciprocal in float64.
            scale = self._make("double", double, aten._to_copy.default, self._scale, dtype=double)
            inverse = self._make("inverse_double", double, aten.reciprocal.default, scale)
            self._inverse = self._make("inverse", single, aten._to_copy.default, inverse, dtype=single)
        self._builder.call(
            aten._amp_foreach_non_finite_check_and_unscale_.default,
            ([gradient], self._found_inf, self._inverse),
            phase=Phase.BACKWARD,
        )

    def all_finite(self) -> View:
        """Return whether all gradients were, as a bool without dimensions."""
        return self._make("all_finite", torch.bool, aten.eq.Scalar, self._found_inf, 0)

    def adjust(self) -> None:
        """Give the next iteration its scale."""
        self._builder.call(
            aten._amp_update_scale_.default,
            (
                self._scale,
                self._growth_tracker,
                self._found_inf,
                _GROWTH_FACTOR,
                _BACKOFF_FACTOR,
                _GROWTH_INTERVAL,
            ),
            phase=Phase.OPTIMIZER,
        )

    @property
    def outputs(self) -> Mapping[str, View]:
        """What the host is to know of each iteration, by name."""
        assert self._found_inf is not None, "a training has gradients"
        return {NEXT_SCALE: self._scale, SKIPPED: self._found_inf}

    def _make(
        self, what: str, dtype: torch.dtype, function: torch._ops.OpOverload, /, *args: Any, **options: Any
    ) -> View:
        """Add a call that makes a tensor of this dtype without dimensions; options: the function's."""
        made = self._builder.add_tensor(
            nbytes=dtype.itemsize, dtype=dtype, shape=(), role=Role.ACTIVATION, name=f"loss_scale/{what}"
        )
        view = View(tensor=made, dtype=dtype, size=(), stride=(), offset=0)
        self._builder.call(function, args, options, phase=Phase.BACKWARD, outputs=(view,))
        return view
