"""Small networks of random sizes, whose training steps are measured to learn how long ops take.

A probe is a few layers of the sorts that networks are made of, so that every op comes as autograd and the
optimizers make it, with the layouts and neighbours that it has in a training, and what each op reads is
sound by construction.  Sizes are drawn log-uniformly; equal seeds and numbers give equal probes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log, prod
from random import Random
from typing import TypeVar

from torch import nn

from tensile_db.capture.networks.probe_layers import ChannelNorm, Gated, Joined, Scale, Transformer
from tensile_db.capture.networks.randomness import seeded

T = TypeVar("T")

#: Kernel sizes and how often they come, as networks have them.
_KERNELS = (
    ((3, 3), 40),
    ((1, 1), 30),
    ((5, 5), 4),
    ((7, 7), 3),
    ((1, 7), 4),
    ((7, 1), 4),
    ((1, 3), 3),
    ((3, 1), 3),
)
_OPTIMIZERS = (("adam", 4), ("momentum", 2), ("sgd", 1), ("adamw", 1))
#: The least that a probe's largest op may be limited to.
_LEAST_FLOPS = 2**22
_ACTIVATIONS = (("relu", 8), ("silu", 1), ("gelu", 1), ("hardtanh", 1), ("sigmoid", 1))


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How large a probe's ops may be."""

    #: Of one op going forward; backward takes about twice that.
    flops: int = 2**33
    #: Of one tensor.
    tensor_nbytes: int = 2**26


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A network to be trained for a few iterations on batches of random numbers."""

    model: nn.Module
    #: Of the features, rows first.
    batch_shape: tuple[int, ...]
    num_classes: int
    #: A name that optimizers.configure knows.
    optimizer: str


def draw_probe(number: int, *, seed: int, limits: Limits) -> Probe:
    """Return the probe of that number in the sequence that `seed` begins; no other probe is needed for it.

    Takes DEFAULT_GENERATOR_LOCK.
    """
    draw = Random(f"{seed}/{number}")
    # Large ones take long: most are to be smaller.
    limits = replace(limits, flops=_log_uniform(draw, _LEAST_FLOPS, limits.flops))
    family = _choose(draw, ((_convolutions, 10), (_transformer, 5), (_layers, 2)))
    with seeded(seed + number):
        model, batch_shape, classes = family(draw, limits)
    return Probe(
        model=model, batch_shape=batch_shape, num_classes=classes, optimizer=_choose(draw, _OPTIMIZERS)
    )


def _convolutions(draw: Random, limits: Limits) -> tuple[nn.Module, tuple[int, ...], int]:
    """Convolutions with normalization, activation, pooling, residual sums and concatenations."""
    batch, channels, size = _shape(draw, limits)
    layers: list[nn.Module] = [Scale((1, channels, 1, 1))]
    height = width = size
    if draw.random() < 0.25:
        # Images, where the first convolution has three channels in and no gradient for them.
        layers, input_channels = [], 3
    else:
        input_channels = channels
    channels = input_channels
    for _ in range(draw.randint(1, 4)):
        block, channels, height, width = _convolution(draw, limits, batch, channels, height, width)
        layers += block
        if min(height, width) >= 4 and draw.random() < 0.4:
            pool, height, width = _pool(draw, height, width)
            layers.append(pool)
    head: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    inputs = channels
    if height * width * channels * 4 <= 2**16 and draw.random() < 0.3:
        head, inputs = [nn.Flatten()], height * width * channels
    classes = _log_uniform(draw, 2, 1000)
    return (
        nn.Sequential(*layers, *head, nn.Linear(inputs, classes)),
        (batch, input_channels, size, size),
        classes,
    )


def _convolution(
    draw: Random, limits: Limits, batch: int, channels: int, height: int, width: int
) -> tuple[list[nn.Module], int, int, int]:
    """Return layers around one convolution, and the channels, height and width that come out."""
    kernel = _choose(draw, _KERNELS)
    stride = 2 if draw.random() < 0.2 and min(height, width) >= 4 else 1
    padded = draw.random() < 0.85 or min(height, width) < 8
    padding = (kernel[0] // 2, kernel[1] // 2) if padded else (0, 0)
    depthwise = draw.random() < 0.12
    out_height = (height + 2 * padding[0] - kernel[0]) // stride + 1
    out_width = (width + 2 * padding[1] - kernel[1]) // stride + 1
    pixels = batch * out_height * out_width
    if depthwise:
        out_channels = channels
    else:
        most = min(
            limits.flops // (2 * pixels * channels * prod(kernel)),
            limits.tensor_nbytes // (4 * pixels),
            limits.tensor_nbytes // (4 * channels * prod(kernel)),
            2048,
        )
        out_channels = _channels(draw, max(8, min(most, 8)), max(8, most))
    bias = draw.random() < 0.3
    convolution = nn.Conv2d(
        channels, out_channels, kernel, stride, padding, groups=channels if depthwise else 1, bias=bias
    )
    layers: list[nn.Module] = [convolution]
    if draw.random() < 0.75:
        layers.append(nn.BatchNorm2d(out_channels))
    elif draw.random() < 0.3:
        layers.append(ChannelNorm(out_channels))
    if draw.random() < 0.85:
        layers.append(_activation(draw))
    if draw.random() < 0.3 and 2 * pixels * out_channels**2 <= limits.flops:
        residual = draw.random() < 0.5
        most = min(out_channels, limits.tensor_nbytes // (4 * pixels) - out_channels)
        if residual or most < 8:
            layers.append(Joined(out_channels, (out_channels,), residual=True))
        else:
            widths = tuple(_channels(draw, 8, max(8, most // 3)) for _ in range(draw.randint(1, 3)))
            layers.append(Joined(out_channels, widths, residual=False))
            out_channels += sum(widths)
    if draw.random() < 0.1:
        layers.append(Gated(out_channels, max(4, out_channels // draw.choice((4, 8, 16)))))
    return layers, out_channels, out_height, out_width


def _pool(draw: Random, height: int, width: int) -> tuple[nn.Module, int, int]:
    kernel, stride, padding = draw.choice(((2, 2, 0), (3, 2, 1), (3, 2, 0), (3, 1, 1)))
    kind: Callable[..., nn.Module] = nn.MaxPool2d if draw.random() < 0.6 else nn.AvgPool2d
    height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    return kind(kernel, stride, padding), height, width


def _transformer(draw: Random, limits: Limits) -> tuple[nn.Module, tuple[int, ...], int]:
    """Patches of images through attention and wide linear layers."""
    most = 0
    while most < 1:
        patch, side = draw.choice((4, 8, 14, 16, 32)), _log_uniform(draw, 2, 20)
        tokens = side * side + 1
        head_width, heads = draw.choice((32, 48, 64, 64, 64)), _log_uniform(draw, 1, 16)
        width = head_width * heads
        ratio = draw.choice((2, 3, 4, 4))
        most = min(
            limits.flops // (2 * tokens * ratio * width * width),
            limits.tensor_nbytes // (4 * tokens * ratio * width),
            limits.tensor_nbytes // (4 * 3 * (side * patch) ** 2),
            limits.tensor_nbytes // (4 * ratio * width * width),
            64,
        )
    batch = _log_uniform(draw, 1, most)
    classes = _log_uniform(draw, 2, 1000)
    model = Transformer(
        width=width,
        heads=heads,
        ratio=ratio,
        patch=patch,
        tokens=tokens,
        depth=draw.randint(1, 2),
        classes=classes,
    )
    return model, (batch, 3, side * patch, side * patch), classes


def _layers(draw: Random, limits: Limits) -> tuple[nn.Module, tuple[int, ...], int]:
    """Linear layers with activations and dropout between them."""
    batch = _log_uniform(draw, 1, 512)
    largest = limits.tensor_nbytes // 4
    widths = [_log_uniform(draw, 4, min(16384, largest // batch))]
    for _ in range(draw.randint(1, 3)):
        most = min(largest // widths[-1], largest // batch, limits.flops // (2 * batch * widths[-1]), 8192)
        widths.append(_log_uniform(draw, 4, max(4, most)))
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), _activation(draw)]
        if draw.random() < 0.4:
            layers.append(nn.Dropout(draw.choice((0.1, 0.5))))
    classes = _log_uniform(draw, 2, min(1000, max(2, largest // widths[-1])))
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes)), (batch, widths[0]), classes


def _shape(draw: Random, limits: Limits) -> tuple[int, int, int]:
    """Return rows, channels and side of an image-like tensor within the limit."""
    while True:
        batch, size = _log_uniform(draw, 1, 64), _log_uniform(draw, 2, 160)
        channels = _channels(draw, 8, 2048)
        # Deep layers have many channels and few pixels; the opposite corner is nobody's.
        if 4 * batch * channels * size * size <= limits.tensor_nbytes and channels * size <= 2**14:
            return batch, channels, size


def _channels(draw: Random, least: int, most: int) -> int:
    # Known networks have multiples of eight; oneDNN has crashed over others (1 x 1, stride 2, 10 channels).
    return max(8, _log_uniform(draw, least, most) // 8 * 8)


def _activation(draw: Random) -> nn.Module:
    match _choose(draw, _ACTIVATIONS):
        case "relu":
            return nn.ReLU(inplace=draw.random() < 0.7)
        case "silu":
            return nn.SiLU(inplace=draw.random() < 0.7)
        case "gelu":
            return nn.GELU()
        case "hardtanh":
            return nn.ReLU6(inplace=draw.random() < 0.7)
        case _:
            return nn.Sigmoid()


def _log_uniform(draw: Random, least: int, most: int) -> int:
    return min(most, round(exp(draw.uniform(log(least), log(most + 0.5)))))


def _choose(draw: Random, choices: tuple[tuple[T, int], ...]) -> T:
    return draw.choices([choice for choice, _ in choices], [weight for _, weight in choices])[0]
