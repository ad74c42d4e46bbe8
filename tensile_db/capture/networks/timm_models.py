"""timm's models, by timm's names: never pretrained, so that nothing is fetched from anywhere."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import timm
import torch
from torch import nn

from tensile_db.capture.networks.options import fraction, known_options
from tensile_db.capture.networks.randomness import seeded
from tensile_db.errors import InvalidRequest

#: dropout: in the classifier.  drop_path: stochastic depth, where the network has it.
OPTIONS = ("dropout", "drop_path")

_TIMM_OPTIONS = {"dropout": "drop_rate", "drop_path": "drop_path_rate"}

#: VGG's two hidden classifier layers drop half of their outputs (Simonyan and Zisserman 2015, section 3.1);
#: timm's default is none.
_VGG_DROPOUT = 0.5

#: Smaller images are resized to this: the networks here reduce theirs 32 times.
_LEAST_SIZE = 32

#: Tried in this order where a network cannot run on the images' own size.
_SIZES = (32, 48, 64, 75, 80, 96, 112, 128, 160, 192, 224, 256, 299, 320, 384, 448, 512)


@cache
def names() -> tuple[str, ...]:
    """Return all model names, in timm's order."""
    return tuple(timm.list_models())


def exists(name: str) -> bool:
    """Tell whether timm lists a model of this name: no tag, no hub, no path."""
    return name in _name_set()


def build(
    name: str, *, num_outputs: int, input_shape: Sequence[int], options: Mapping[str, Any]
) -> nn.Module:
    """Return the model for images of shape (channels, height, width).

    Raises UnknownName and InvalidRequest for options, InvalidRequest for images it cannot take.
    """
    channels, height, width = input_shape
    chosen = known_options(f"architecture {name}", options, OPTIONS)
    arguments = {
        _TIMM_OPTIONS[option]: fraction(f"architecture {name}", option, value)
        for option, value in chosen.items()
    }
    if name.startswith("vgg"):
        arguments.setdefault("drop_rate", _VGG_DROPOUT)
    return _create(name, num_outputs, channels, (height, width), arguments)


@cache
def image_size(name: str, source_size: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) nearest to the source's that the model runs on, at most its native size.

    Candidates are tried on meta tensors: no memory, no arithmetic, some tenths of a second.
    """
    native = _native_size(name)
    height, width = (
        min(max(side, _LEAST_SIZE), limit) for side, limit in zip(source_size, native, strict=True)
    )
    larger = [(size, size) for size in _SIZES if max(height, width) < size < min(native)]
    for size in ((height, width), *larger):
        if runs_on(name, size):
            return size
    return native


def channels(name: str) -> int:
    """Return the channels that the model was designed for."""
    return _input_size(name)[0]


@cache
def _name_set() -> frozenset[str]:
    return frozenset(names())


def _native_size(name: str) -> tuple[int, int]:
    _, height, width = _input_size(name)
    return height, width


def _input_size(name: str) -> tuple[int, int, int]:
    config = timm.get_pretrained_cfg(name)
    channels, height, width = (3, 224, 224) if config is None else config.input_size
    return int(channels), int(height), int(width)


def _has_fixed_size(name: str) -> bool:
    config = timm.get_pretrained_cfg(name)
    return config is not None and bool(config.fixed_input_size)


def _create(
    name: str, num_outputs: int, channels: int, size: tuple[int, int], arguments: Mapping[str, Any]
) -> nn.Module:
    arguments = dict(arguments)
    if _has_fixed_size(name) and size != _native_size(name):
        arguments["img_size"] = size
    try:
        model: nn.Module = timm.create_model(
            name, pretrained=False, num_classes=num_outputs, in_chans=channels, **arguments
        )
    except (TypeError, ValueError, AssertionError, RuntimeError, ZeroDivisionError) as error:
        # timm has no list of a model's arguments, nor of the images that it can take: it says so here.
        raise InvalidRequest(
            f'architecture "{name}" cannot be built for images of {channels} x {size[0]} x {size[1]}:'
            f" {error}",
            hint="Use its default image_size, leave its options out, or use another architecture.",
        ) from error
    return model


def runs_on(name: str, size: tuple[int, int]) -> bool:
    """Tell whether the model can be trained on images of (height, width), all of them."""
    channels = _input_size(name)[0]
    # Two rows: batch norms in training refuse a single value for each channel.
    with seeded(0), torch.device("meta"), torch.no_grad():
        try:
            model = _create(name, 2, channels, size, {}).train()
            if tuple(model(torch.empty(2, channels, *size)).shape) != (2, 2):
                return False
        except (InvalidRequest, RuntimeError, ValueError, AssertionError, IndexError, ZeroDivisionError):
            return False
    # A patch embedding may leave out what is over at the edges without a word.
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    return not isinstance(patch, tuple) or all(
        side % step == 0 for side, step in zip(size, patch, strict=True)
    )
