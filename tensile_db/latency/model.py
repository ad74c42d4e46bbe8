"""A kind's latency model: a small perceptron over features and utilization, and the range that it knows.

    log2 latency = log2 roofline + straight . z + out . s(V s(W z + a) + b) + c,
    s(x) = log(1 + exp x),   z = (x - mean) / deviation

x: the op's features that differed among the samples, and the utilization.  The roofline is what the latency
would be without a model, at rates that are the model's own: few samples make little of a correction.  A power
law is straight in logarithms, and a sum of power laws (overhead, arithmetic, traffic) is bent as s is,
straight again at both ends.  Inference is numpy alone; what is stored is plain JSON.

Source: TENSILE section IV-A: four layers (input, two hidden, output), one network a kind of op.
Differs: roofline and straight part, by which some dozens of shapes are enough; and a prediction is made
within the sampled range only, elsewhere the caller falls back on a roofline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensile_db.latency.features import FLOPS, MOVED_NBYTES, OpFeatures, is_size

#: Of the JSON; a model of another format, or with other features, is not used.
FORMAT = 1

#: How far a size may lie outside the sampled range, as a factor of two to this power.
_SIZE_MARGIN = 1.0
#: A prediction lies within the sampled latencies times two to plus or minus this.
_LATENCY_MARGIN = 1.0

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Layer:
    """Outputs = weight @ inputs + bias; weight: (outputs, inputs)."""

    weight: Array
    bias: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Of a roofline."""

    flops_per_s: int
    memory_bytes_per_s: int
    op_overhead_ns: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatencyModel:
    """What was learned of one kind."""

    #: Features of the kind, in order; the utilization is the last column everywhere below.
    names: tuple[str, ...]
    rates: Rates
    #: The sampled range of each column; shape (names + 1,).
    low: Array
    high: Array
    #: Places of the columns that the network takes; their mean and deviation, shape (inputs,).
    inputs: tuple[int, ...]
    mean: Array
    deviation: Array
    #: Weights of the straight part, shape (inputs,).
    straight: Array
    #: Hidden layers, then the one output.
    layers: tuple[Layer, ...]
    #: The sampled range of log2 ns.
    least: float
    most: float

    def covers(self, ops: Sequence[OpFeatures], utilization: float) -> NDArray[np.bool_]:
        """Tell of each op whether it lies in the sampled range, sizes within a factor of two of it."""
        x = self._columns(ops, utilization)
        margin = np.array([_SIZE_MARGIN if is_size(name) else 0.0 for name in self.names] + [0.0])
        # Rounding must not turn away what was sampled.
        margin += 1e-6
        inside = (x >= self.low - margin) & (x <= self.high + margin)
        known = np.array([op.names == self.names for op in ops], dtype=bool)
        covered: NDArray[np.bool_] = known & inside.all(axis=1)
        return covered

    def predict_ns(self, ops: Sequence[OpFeatures], utilization: float) -> list[int]:
        """Return the predicted latency of each op, in ns, at least 1; sensible where `covers` says so."""
        return self.predict_columns_ns(self._columns(ops, utilization))

    def predict_columns_ns(self, x: Array) -> list[int]:
        """Return the predicted latencies of rows of all columns; shape (ops, names + 1)."""
        z = (x[:, list(self.inputs)] - self.mean) / self.deviation
        hidden = z
        for layer in self.layers[:-1]:
            hidden = np.logaddexp(0.0, hidden @ layer.weight.T + layer.bias)
        bent = hidden @ self.layers[-1].weight.T + self.layers[-1].bias
        logarithm = log_roofline(x, self.names, self.rates) + z @ self.straight + bent[:, 0]
        # A network may say anything between its samples.
        logarithm = np.clip(logarithm, self.least - _LATENCY_MARGIN, self.most + _LATENCY_MARGIN)
        return [max(1, round(float(ns))) for ns in np.exp2(logarithm)]

    def to_json(self) -> dict[str, Any]:
        """Return the model as JSON's own types."""
        return {
            "format": FORMAT,
            "names": list(self.names),
            "rates": asdict(self.rates),
            "low": self.low.tolist(),
            "high": self.high.tolist(),
            "inputs": list(self.inputs),
            "mean": self.mean.tolist(),
            "deviation": self.deviation.tolist(),
            "straight": self.straight.tolist(),
            "layers": [
                {"weight": layer.weight.tolist(), "bias": layer.bias.tolist()} for layer in self.layers
            ],
            "least": self.least,
            "most": self.most,
        }

    def _columns(self, ops: Sequence[OpFeatures], utilization: float) -> Array:
        width = len(self.names)
        # One of another length is not covered; its numbers do not matter.
        rows = [op.values if len(op.values) == width else (0.0,) * width for op in ops]
        return columns(rows, [utilization] * len(ops), width)


def columns(values: Sequence[Sequence[float]], utilizations: Sequence[float], width: int) -> Array:
    """Return rows of features with their utilization as the last column; shape (rows, width + 1)."""
    x = np.empty((len(values), width + 1))
    x[:, :width] = np.array(values, dtype=np.float64).reshape(len(values), width)
    x[:, width] = utilizations
    return x


def log_roofline(x: Array, names: Sequence[str], rates: Rates) -> Array:
    """Return log2 ns of the roofline of each row of columns; shape (rows,)."""
    flops, moved_nbytes = (2.0 ** x[:, names.index(name)] for name in (FLOPS, MOVED_NBYTES))
    seconds = np.maximum(flops / rates.flops_per_s, moved_nbytes / rates.memory_bytes_per_s)
    logarithm: Array = np.log2(rates.op_overhead_ns + 1e9 * seconds)
    return logarithm


def from_json(document: object) -> LatencyModel | None:
    """Return a stored model; None if it is of another format."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        return None

    def array(name: str) -> Array:
        return np.array(document[name], dtype=np.float64)

    return LatencyModel(
        names=tuple(document["names"]),
        rates=Rates(**document["rates"]),
        low=array("low"),
        high=array("high"),
        inputs=tuple(document["inputs"]),
        mean=array("mean"),
        deviation=array("deviation"),
        straight=array("straight"),
        layers=tuple(
            Layer(
                weight=np.array(layer["weight"], dtype=np.float64),
                bias=np.array(layer["bias"], dtype=np.float64),
            )
            for layer in document["layers"]
        ),
        least=float(document["least"]),
        most=float(document["most"]),
    )
