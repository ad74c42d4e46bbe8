"""Learns a kind's latency model from samples, and says how well it does on shapes that it has not seen.

PyTorch trains it, since it is here anyway and has L-BFGS: a few hundred samples and a thousand weights are a
small smooth problem, which that solves in a fraction of a second, and equal samples and seeds give equal
models.  scikit-learn, the other choice, would be a dependency for this alone.

Source: TENSILE section IV-A.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median

import numpy as np
import torch
from torch.nn import functional

from tensile_db.latency.model import Array, LatencyModel, Layer, Rates, columns, log_roofline
from tensile_db.latency.predictor import KindModel, roofline_scale
from tensile_db.latency.roofline import roofline_ns
from tensile_db.latency.samples import LatencySample
from tensile_db.scheduler.plan import DeviceSpec

#: Neurons of the two hidden layers.
_HIDDEN = (24, 24)
#: L-BFGS's, at most.
_ITERATIONS = 100
#: Weight of the squared weights beside the sum of errors: what few samples say is believed less.
_DECAY = 1.0
#: Errors of log2 ns beyond this count linearly, not squared: what disturbs a measurement disturbs it much.
_DISTURBED = 0.5
#: Distinct shapes, below which a kind gets no model, and one in so many is held out.
LEAST_SHAPES = 24
_HELD_OUT = 5
#: More samples of a kind than this make training slower, and the model hardly better.
_MOST_SAMPLES = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far predictions are from the latencies of shapes that were held out."""

    #: Share of the variance of the latencies, in ns, that is explained; None where they do not vary.
    r_squared: float | None
    #: The same of their logarithms.
    r_squared_log: float | None
    #: Median of |predicted - measured| / measured.
    median_relative_error: float
    sample_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What was learned of one kind, and how well."""

    model: KindModel
    #: Of a network that has not seen the held-out shapes, while the model's own has; None without a network.
    errors: Errors | None
    sample_count: int


def learn(
    samples: Iterable[LatencySample],
    device: DeviceSpec,
    *,
    seed: int,
    on_kind: Callable[[int, int], object] = lambda done, of: None,
) -> dict[str, Learned]:
    """Return what is learned of each kind.

    device: for the roofline's scale.  on_kind: told after each kind how many are done, and of how many.
    Samples whose features are not those of the kind's newest sample, the last one, are left out.
    """
    by_kind: dict[str, list[LatencySample]] = defaultdict(list)
    for sample in samples:
        by_kind[sample.features.kind].append(sample)
    learned = {}
    for done, kind in enumerate(sorted(by_kind), start=1):
        names = by_kind[kind][-1].features.names
        own = [sample for sample in by_kind[kind] if sample.features.names == names]
        trained = train(own, device, seed=seed)
        learned[kind] = Learned(
            model=KindModel(
                network=None if trained is None else trained[0], roofline_scale=roofline_scale(own, device)
            ),
            errors=None if trained is None else trained[1],
            sample_count=len(own),
        )
        on_kind(done, len(by_kind))
    return learned


def train(
    samples: Sequence[LatencySample], device: DeviceSpec, *, seed: int
) -> tuple[LatencyModel, Errors] | None:
    """Return a model of one kind and the errors of another that has not seen the shapes held out.

    samples: of one kind, with equal names, in any order; device: for the roofline.
    None where there are too few shapes, or where the scaled roofline does better on those held out.
    """
    kept = _subset(samples, seed)
    shapes = sorted({sample.features.values for sample in kept})
    if len(shapes) < LEAST_SHAPES:
        return None
    Random(seed).shuffle(shapes)
    held_out = set(shapes[: len(shapes) // _HELD_OUT])
    seen = [sample for sample in kept if sample.features.values not in held_out]
    unseen = [sample for sample in kept if sample.features.values in held_out]
    rates = Rates(
        flops_per_s=device.flops_per_s,
        memory_bytes_per_s=device.memory_bytes_per_s,
        op_overhead_ns=device.op_overhead_ns,
    )
    errors = errors_of(_fit(seen, rates, seed), unseen)
    scale = roofline_scale(seen, device)
    plain = errors_between(
        [
            max(1, round(scale * roofline_ns(one.features.flops, one.features.moved_nbytes, device)))
            for one in unseen
        ],
        [one.latency_ns for one in unseen],
    )
    if errors.median_relative_error > plain.median_relative_error:
        return None
    return _fit(kept, rates, seed), errors


def errors_of(model: LatencyModel, samples: Sequence[LatencySample]) -> Errors:
    """Return how far the model is from samples of its kind."""
    return errors_between(
        model.predict_columns_ns(_columns(samples)), [sample.latency_ns for sample in samples]
    )


def errors_between(predicted_ns: Sequence[int], measured_ns: Sequence[int]) -> Errors:
    """Return how far predictions are from measurements, both ns and at least 1, in the same order."""
    predicted, measured = np.array(predicted_ns, dtype=float), np.array(measured_ns, dtype=float)
    return Errors(
        r_squared=_r_squared(predicted, measured),
        r_squared_log=_r_squared(np.log2(predicted), np.log2(measured)),
        median_relative_error=median((np.abs(predicted - measured) / measured).tolist()),
        sample_count=len(measured),
    )


def _r_squared(predicted: Array, measured: Array) -> float | None:
    total = float(((measured - measured.mean()) ** 2).sum())
    return None if total == 0.0 else 1.0 - float(((measured - predicted) ** 2).sum()) / total


def _subset(samples: Sequence[LatencySample], seed: int) -> list[LatencySample]:
    """Return samples in an order of their own, at most _MOST_SAMPLES, all of a shape or none."""
    by_shape: dict[tuple[float, ...], list[LatencySample]] = defaultdict(list)
    for sample in sorted(samples, key=lambda one: (one.features.values, one.utilization, one.latency_ns)):
        by_shape[sample.features.values].append(sample)
    shapes = list(by_shape)
    Random(seed).shuffle(shapes)
    kept: list[LatencySample] = []
    for shape in shapes:
        if len(kept) < _MOST_SAMPLES:
            kept += by_shape[shape]
    return kept


def _columns(samples: Sequence[LatencySample]) -> Array:
    return columns(
        [sample.features.values for sample in samples],
        [sample.utilization for sample in samples],
        len(samples[0].features.names),
    )


def _fit(samples: Sequence[LatencySample], rates: Rates, seed: int) -> LatencyModel:
    x = _columns(samples)
    y = np.log2(np.array([sample.latency_ns for sample in samples], dtype=np.float64))
    inputs = tuple(int(place) for place in np.flatnonzero(np.ptp(x, axis=0) > 0))
    varying = x[:, list(inputs)]
    mean, deviation = varying.mean(axis=0), varying.std(axis=0)
    correction = y - log_roofline(x, samples[0].features.names, rates)
    network = _Network(len(inputs), offset=float(np.median(correction)), seed=seed)
    network.train_on(torch.from_numpy((varying - mean) / deviation), torch.from_numpy(correction))
    return LatencyModel(
        names=samples[0].features.names,
        rates=rates,
        low=x.min(axis=0),
        high=x.max(axis=0),
        inputs=inputs,
        mean=mean,
        deviation=deviation,
        straight=network.straight.numpy(),
        layers=tuple(Layer(weight=weight.numpy(), bias=bias.numpy()) for weight, bias in network.layers),
        least=float(y.min()),
        most=float(y.max()),
    )


class _Network:
    """The model while it learns; the formula is that of model.py."""

    def __init__(self, inputs: int, *, offset: float, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.straight = torch.zeros(inputs, dtype=torch.float64)
        #: Weight and bias of each layer.
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        for width, next_width in pairwise((inputs, *_HIDDEN, 1)):
            # Glorot's first values.
            deviation = (2 / (width + next_width)) ** 0.5
            weight = torch.randn(next_width, width, dtype=torch.float64, generator=generator) * deviation
            self.layers.append((weight, torch.zeros(next_width, dtype=torch.float64)))
        self.layers[-1][1].fill_(offset)

    def predict(self, z: torch.Tensor) -> torch.Tensor:
        """Return the logarithms of the corrections of the roofline; z: (ops, inputs)."""
        hidden = z
        for weight, bias in self.layers[:-1]:
            hidden = functional.softplus(hidden @ weight.T + bias)
        weight, bias = self.layers[-1]
        return z @ self.straight + (hidden @ weight.T + bias)[:, 0]

    def train_on(self, z: torch.Tensor, y: torch.Tensor) -> None:
        """Fit the weights to y, logarithms of corrections."""
        parameters = [self.straight, *(part for layer in self.layers for part in layer)]
        for parameter in parameters:
            parameter.requires_grad_()
        optimizer = torch.optim.LBFGS(
            parameters, max_iter=_ITERATIONS, history_size=20, line_search_fn="strong_wolfe"
        )

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            error = 2 * functional.huber_loss(self.predict(z), y, delta=_DISTURBED)
            squares = (self.straight**2).sum()
            for weight, _ in self.layers:
                squares = squares + (weight**2).sum()
            value = error + _DECAY / len(y) * squares
            torch.autograd.backward(value)
            return value

        optimizer.step(loss)  # type: ignore[no-untyped-call]
        for parameter in parameters:
            parameter.requires_grad_(False)
