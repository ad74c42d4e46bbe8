"""The multilayer perceptron, for tabular data; images are flattened."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

from torch import nn

from tensile_db.capture.networks.options import fraction, known_options
from tensile_db.errors import InvalidRequest

NAMES = ("mlp",)

#: hidden_units: width of each hidden layer, [128, 64] by default.  dropout: after each of them, 0 by default.
OPTIONS = ("hidden_units", "dropout")

_HIDDEN_UNITS = (128, 64)


def build(*, num_outputs: int, input_shape: Sequence[int], options: Mapping[str, Any]) -> nn.Module:
    """Return linear layers with ReLU between them; one row may have any shape.

    Raises UnknownName and InvalidRequest for options.
    """
    chosen = known_options("architecture mlp", options, OPTIONS)
    hidden_units = _widths(chosen.get("hidden_units", _HIDDEN_UNITS))
    dropout = fraction("architecture mlp", "dropout", chosen.get("dropout", 0.0))
    widths = (prod(input_shape), *hidden_units)
    layers: list[nn.Module] = [nn.Flatten()]
    for width, next_width in pairwise(widths):
        layers += [nn.Linear(width, next_width), nn.ReLU()]
        if dropout > 0.0:
            layers.append(nn.Dropout(dropout))
    layers.append(nn.Linear(widths[-1], num_outputs))
    return nn.Sequential(*layers)


def _widths(value: object) -> tuple[int, ...]:
    widths = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(width, int) and not isinstance(width, bool) and width >= 1 for width in widths):
        return tuple(widths)
    raise InvalidRequest(
        f"architecture mlp: hidden_units is {value!r}",
        hint="Give hidden_units as a list of whole numbers from 1 up, e.g. [128, 64].",
    )
