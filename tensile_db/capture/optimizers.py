"""Optimizers as explicit ATen calls, one chain a parameter.

The calls are those of torch.optim's single-tensor paths, in the same order and with the same temporaries,
so that parameters and state come out bit for bit the same on the CPU.  Numbers that change from one
iteration to the next are Scalars; torch.optim's `step` is the update's number, and a learning rate that
changes is a float, as torch.optim.lr_scheduler sets it.

Source: torch/optim/sgd.py `_single_tensor_sgd`, torch/optim/adam.py `_single_tensor_adam`.
Differs: the first step of SGD clones the gradient into its momentum buffer; here the buffer starts as -0.0,
from which `buf.mul_(momentum).add_(grad)` gives the same bits, zeros' signs included.  Updates that may have
to be left out (loss_scale.py) are made beside what is there, by the same operators out of place.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from tensile_db.capture.builder import StepBuilder
from tensile_db.capture.schedules import LearningRateSchedule
from tensile_db.capture.step import Scalar, View
from tensile_db.errors import InvalidRequest, UnknownName
from tensile_db.graph import Phase, Role

aten = torch.ops.aten

# Names of Scalars.
_NEGATIVE_RATE = "negative_learning_rate"
_NEGATIVE_STEP_SIZE = "negative_step_size"
_BIAS_CORRECTION2_SQRT = "bias_correction2_sqrt"
_DECAY_FACTOR = "decay_factor"

#: torch.optim's defaults; `momentum` is `sgd` with the momentum that everybody means.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "sgd": {"learning_rate": 1e-3, "momentum": 0.0, "weight_decay": 0.0},
    "momentum": {"learning_rate": 1e-3, "momentum": 0.9, "weight_decay": 0.0},
    "adam": {"learning_rate": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0},
    "adamw": {"learning_rate": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """An optimizer and its options; made by `configure`."""

    #: "sgd", "momentum", "adam" or "adamw".
    name: str
    learning_rate: float
    #: Of the learning rate; None: it stays.
    schedule: LearningRateSchedule | None = None
    #: Of sgd and momentum; 0 keeps no buffer.
    momentum: float = 0.0
    weight_decay: float = 0.0
    #: Of adam and adamw.
    betas: tuple[float, float] = (0.9, 0.999)
    #: Of adam and adamw.
    eps: float = 1e-8
    #: All gradients together are clipped to it (clipping.py); None: they are not.
    max_gradient_norm: float | None = None

    def learning_rate_of(self, update: int) -> float:
        """Return the learning rate of an update, counted from 1."""
        return self.learning_rate if self.schedule is None else self.learning_rate * self.schedule(update)


def configure(name: str, **options: Any) -> OptimizerConfig:
    """Return the optimizer called `name`; options left out, or None, take torch.optim's defaults.

    Raises UnknownName for the optimizer or an option, InvalidRequest for a value.
    """
    if name not in _DEFAULTS:
        raise UnknownName("optimizer", name, _DEFAULTS)
    defaults = {**_DEFAULTS[name], "max_gradient_norm": None}
    for option in options:
        if option not in defaults:
            raise UnknownName(f"option of optimizer {name}", option, defaults)
    chosen = {**defaults, **{option: value for option, value in options.items() if value is not None}}
    for option in ("learning_rate", "momentum", "weight_decay", "eps"):
        if option in chosen:
            chosen[option] = _number(name, option, chosen[option])
    if chosen["max_gradient_norm"] is not None:
        chosen["max_gradient_norm"] = _number(name, "max_gradient_norm", chosen["max_gradient_norm"])
        if not chosen["max_gradient_norm"] > 0:
            raise InvalidRequest(
                f"optimizer {name}: max_gradient_norm is {chosen['max_gradient_norm']}",
                hint="Give one above 0.",
            )
    if not 0.0 <= chosen.get("momentum", 0.0) < 1.0:
        raise InvalidRequest(
            f"optimizer {name}: momentum is {chosen['momentum']}", hint="Give a momentum from 0 to below 1."
        )
    if "betas" in chosen:
        chosen["betas"] = _betas(name, chosen["betas"])
    return OptimizerConfig(name=name, **chosen)


def slots(optimizer: OptimizerConfig) -> tuple[str, ...]:
    """Return the names of the state that is kept for each parameter."""
    if optimizer.name in ("adam", "adamw"):
        return ("exp_avg", "exp_avg_sq")
    return ("momentum_buffer",) if optimizer.momentum != 0.0 else ()


def initial_slot(slot: str, like: torch.Tensor) -> torch.Tensor:
    """Return a slot's value before the first step, laid out as `like`."""
    return torch.full_like(like, -0.0 if slot == "momentum_buffer" else 0.0)


def scalars_of(optimizer: OptimizerConfig) -> Callable[[int], Mapping[str, float]]:
    """Return the function from an update's number, counted from 1, to the Scalars' values."""
    # Partial functions, not closures: a step can be pickled.
    if optimizer.name in ("adam", "adamw"):
        return partial(_adam_scalars, optimizer)
    return _no_scalars if optimizer.schedule is None else partial(_sgd_scalars, optimizer)


def _sgd_scalars(optimizer: OptimizerConfig, update: int) -> Mapping[str, float]:
    return {_NEGATIVE_RATE: -optimizer.learning_rate_of(update)}


def _adam_scalars(optimizer: OptimizerConfig, update: int) -> Mapping[str, float]:
    beta1, beta2 = optimizer.betas
    learning_rate = optimizer.learning_rate_of(update)
    # torch.optim counts steps in a float32 tensor and computes with its value as a Python float.
    step = float(update)
    scalars = {
        _NEGATIVE_STEP_SIZE: -(learning_rate / (1 - beta1**step)),
        _BIAS_CORRECTION2_SQRT: (1 - beta2**step) ** 0.5,
    }
    if _decay_changes(optimizer):
        scalars[_DECAY_FACTOR] = 1 - learning_rate * optimizer.weight_decay
    return scalars


def _decay_changes(optimizer: OptimizerConfig) -> bool:
    """Whether AdamW's decay factor, which has the learning rate in it, is a Scalar."""
    return optimizer.name == "adamw" and optimizer.weight_decay != 0 and optimizer.schedule is not None


def emit_update(
    builder: StepBuilder,
    optimizer: OptimizerConfig,
    *,
    name: str,
    parts: Sequence[tuple[View, View]],
    state: Mapping[str, Sequence[View]],
    applies: View | None = None,
) -> None:
    """Add the calls that update one parameter, part by part where it is large (`parts.py`).

    name: the parameter's qualified name, for its temporaries.  parts: the windows onto parameter and gradient
    that belong together, in order.  state: by slot, its parts.
    applies: a bool without dimensions that tells whether the update is to be kept; None: it always is.
    """
    for number, (own, gradient) in enumerate(parts):
        held = {slot: views[number] for slot, views in state.items()}
        update = _Update(
            builder=builder,
            name=name,
            parameter=own,
            lasting=frozenset(each for view in (own, *held.values()) for each in (view, _as_real(view))),
            applies=applies,
        )
        if optimizer.name in ("adam", "adamw"):
            update.adam(optimizer, gradient, held["exp_avg"], held["exp_avg_sq"])
        else:
            update.sgd(optimizer, gradient, held.get("momentum_buffer"))


def _as_real(view: View) -> View:
    """Return what torch.view_as_real makes of a complex view; any other as it is."""
    if not view.dtype.is_complex:
        return view
    return View(
        tensor=view.tensor,
        dtype=view.dtype.to_real(),
        size=(*view.size, 2),
        stride=(*(2 * stride for stride in view.stride), 1),
        offset=2 * view.offset,
    )


#: In place -> beside.
_BESIDE: Mapping[torch._ops.OpOverload, torch._ops.OpOverload] = {
    aten.add_.Tensor: aten.add.Tensor,
    aten.addcdiv_.default: aten.addcdiv.default,
    aten.lerp_.Scalar: aten.lerp.Scalar,
    aten.mul_.Tensor: aten.mul.Tensor,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Update:
    builder: StepBuilder
    name: str
    parameter: View
    #: The parameter and its state.
    lasting: frozenset[View]
    #: As in emit_update.
    applies: View | None

    def sgd(self, optimizer: OptimizerConfig, gradient: View, momentum_buffer: View | None) -> None:
        if optimizer.weight_decay != 0:
            gradient = self._decayed(gradient, optimizer.weight_decay)
        if momentum_buffer is not None:
            buffer = self._changed(momentum_buffer, aten.mul_.Tensor, optimizer.momentum)
            gradient = self._changed(buffer, aten.add_.Tensor, gradient, alpha=1)
        rate = -optimizer.learning_rate if optimizer.schedule is None else Scalar(name=_NEGATIVE_RATE)
        parameter = self._changed(self.parameter, aten.add_.Tensor, gradient, alpha=rate)
        self._keep(self.parameter, parameter)
        if momentum_buffer is not None:
            self._keep(momentum_buffer, gradient)

    def adam(self, optimizer: OptimizerConfig, gradient: View, exp_avg: View, exp_avg_sq: View) -> None:
        beta1, beta2 = optimizer.betas
        parameter = self.parameter
        if optimizer.weight_decay != 0:
            if optimizer.name == "adamw":
                factor: float | Scalar = 1 - optimizer.learning_rate * optimizer.weight_decay
                if _decay_changes(optimizer):
                    factor = Scalar(name=_DECAY_FACTOR)
                parameter = self._changed(parameter, aten.mul_.Tensor, factor)
            else:
                gradient = self._decayed(gradient, optimizer.weight_decay)
        if parameter.dtype.is_complex:
            # As eager's: from here on a complex number is two, each with averages of its own.
            self = replace(self, parameter=_as_real(self.parameter))
            parameter, gradient, exp_avg, exp_avg_sq = map(
                _as_real, (parameter, gradient, exp_avg, exp_avg_sq)
            )
        average = self._changed(exp_avg, aten.lerp_.Scalar, gradient, 1 - beta1)
        square = self._changed(exp_avg_sq, aten.mul_.Tensor, beta2)
        square = self._changed(square, aten.addcmul_.default, gradient, gradient, value=1 - beta2)
        root = self._make("sqrt", aten.sqrt.default, square)
        self._keep(exp_avg_sq, square)
        corrected = self._make("denominator", aten.div.Tensor, root, Scalar(name=_BIAS_CORRECTION2_SQRT))
        self._call(aten.add_.Tensor, corrected, optimizer.eps)
        parameter = self._changed(
            parameter, aten.addcdiv_.default, average, corrected, value=Scalar(name=_NEGATIVE_STEP_SIZE)
        )
        self._keep(exp_avg, average)
        self._keep(self.parameter, parameter)

    def _decayed(self, gradient: View, weight_decay: float) -> View:
        return self._make("decayed", aten.add.Tensor, gradient, self.parameter, alpha=weight_decay)

    def _changed(self, held: View, function: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> View:
        """Return what the function makes of a tensor: in place, or beside what may have to stay."""
        if self.applies is None or held not in self.lasting:
            self._call(function, held, *args, **kwargs)
            return held
        return self._make("updated", _BESIDE[function], held, *args, **kwargs)

    def _keep(self, lasting: View, changed: View) -> None:
        """Have what was made beside take the place of what is there, where the update applies."""
        if self.applies is not None:
            self._call(aten.where.self_out, self.applies, changed, lasting, out=lasting)

    def _call(self, function: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> None:
        self.builder.call(function, args, kwargs, phase=Phase.OPTIMIZER)

    def _make(self, what: str, function: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> View:
        made = self.builder.add_dense(self.parameter, role=Role.ACTIVATION, name=f"{self.name}/{what}")
        self.builder.call(function, args, kwargs, phase=Phase.OPTIMIZER, outputs=(made,))
        return made


def _no_scalars(_update: int) -> Mapping[str, float]:
    return {}


def _number(optimizer: str, option: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < float("inf"):
        raise InvalidRequest(
            f"optimizer {optimizer}: {option} is {value!r}", hint=f"Give {option} as a number from 0 up."
        )
    return float(value)


def _betas(optimizer: str, value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple) and len(value) == 2:
        first, second = (_number(optimizer, "betas", beta) for beta in value)
        if first < 1.0 and second < 1.0:
            return first, second
    raise InvalidRequest(
        f"optimizer {optimizer}: betas is {value!r}", hint="Give betas as two numbers from 0 to below 1."
    )
