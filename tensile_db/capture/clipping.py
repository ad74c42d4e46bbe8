"""Clipping gradients by their norm in the graph, as torch.nn.utils.clip_grad_norm_ has it.

The norm is that of all gradients as one vector, so it is known when the last one is complete: until then all
are kept, whole, and nothing is updated early.  Each gradient's own norm is taken as soon as it is complete.

Where gradients of two parameters are views of one tensor, PyTorch multiplies both twice, for eager PyTorch
lets them share it; here each is multiplied once.

Source: torch/nn/utils/clip_grad.py; Pascanu et al., "On the difficulty of training recurrent neural networks"
(ICML 2013), algorithm 1.
"""

from collections.abc import Iterable, Mapping
from functools import partial, reduce
from typing import Any

import torch

from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.step import View
from tensile_db.graph import Phase, Role

aten = torch.ops.aten

#: Name of the step's output: the norm of all gradients, before they are clipped.
GRADIENT_NORM = "gradient_norm"

#: PyTorch's: so that a norm of 0 divides nothing by 0.
_LEAST_NORM = 1e-6


class GradientClipping:
    """The ops of one step that clip gradients."""

    def __init__(self, builder: StepBuilder, max_norm: float) -> None:
        self._builder = builder
        self._max_norm = max_norm
        #: By their parameters' qualified names.
        self._norms: dict[str, View] = {}
        self._total: View | None = None

    def measure(self, name: str, gradient: View) -> None:
        """Take the norm of a gradient that is complete."""
        dtype = gradient.dtype.to_real()
        self._norms[name] = self._make(
            "norm", (), aten.linalg_vector_norm.default, gradient, 2.0, dtype=dtype, phase=Phase.BACKWARD
        )

    def factor(self, names: Iterable[str]) -> View:
        """Return by what each gradient is multiplied, without dimensions; names: all parameters'."""
        norms = [self._norms[name] for name in names if name in self._norms]
        dtype = reduce(torch.promote_types, (norm.dtype for norm in norms))
        make = partial(self._make, dtype=dtype)
        stacked = make("norms", (len(norms),), aten.stack.default, norms)
        self._total = make("total", (), aten.linalg_vector_norm.default, stacked, 2.0)
        # As Python divides a number by a tensor.
        more = make("more", (), aten.add.Tensor, self._total, _LEAST_NORM)
        inverse = make("inverse", (), aten.reciprocal.default, more)
        factor = make("unclamped", (), aten.mul.Tensor, inverse, self._max_norm)
        return make("factor", (), aten.clamp.default, factor, None, 1.0)

    def clip(self, gradient: View, factor: View) -> None:
        """Multiply a gradient, or a window onto it, in place."""
        self._builder.call(aten.mul_.Tensor, (gradient, factor), phase=Phase.OPTIMIZER)

    @property
    def outputs(self) -> Mapping[str, View]:
        """What the host is to know of each iteration, by name."""
        assert self._total is not None, "a training has gradients"
        return {GRADIENT_NORM: self._total}

    def _make(
        self,
        what: str,
        size: tuple[int, ...],
        function: torch._ops.OpOverload,
        /,
        *args: Any,
        dtype: torch.dtype,
        phase: Phase = Phase.OPTIMIZER,
    ) -> View:
        """Add a call that makes a tensor of this size and type."""
        made = self._builder.add_tensor(
            nbytes=dtype.itemsize * (size[0] if size else 1),
            dtype=dtype,
            shape=size,
            role=Role.ACTIVATION,
            name=f"gradient_clipping/{what}",
        )
        view = View(tensor=made, dtype=dtype, size=size, stride=(1,) * len(size), offset=0)
        self._builder.call(function, args, {}, phase=phase, outputs=(view,))
        return view
