"""Files of weights: their tensors, and what `tensile-db export-weights` says of images beside them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from stat import S_ISREG
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from timm.models import clean_state_dict, load_state_dict

from tensile_db.errors import InvalidRequest

#: Such a file begins with so many bytes that tell its header's length, and the header, which is JSON.
_LENGTH_NBYTES = 8
#: Of buffers: counts of batches, places.
_COUNTS = (torch.int64, torch.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """What an exported model says of itself: its images, and its outputs."""

    num_outputs: int
    #: (height, width) of the network's.
    size: tuple[int, int]
    #: Of each channel, or of grey images' only one: pixels of 0 to 255 become (value - mean) / scale.
    #: Empty for images that were arrays of numbers, whose unit is their own.
    mean: tuple[float, ...]
    scale: tuple[float, ...]


def read_tensors(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors in a file by name, .safetensors or what torch.save has made of a state dict.

    Only tensors are read: whatever else a file would have run is refused.
    Raises InvalidRequest.
    """
    try:
        # Of a pipe nobody knows when it will be read, and how often.
        if not S_ISREG(file.stat().st_mode):
            raise ValueError("it is no file")
        found: dict[str, torch.Tensor]
        if _is_safetensors(file):
            found = clean_state_dict(load_file(file))
        else:
            # Older versions of timm would run what a pickle holds.
            found = load_state_dict(str(file), weights_only=True)
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {file}: {error.strerror or error}", hint="Name a file that you may read."
        ) from error
    except Exception as error:  # of a broken file torch and safetensors raise all kinds
        said = str(error) or type(error).__name__
        # What torch says then is how to have it run all the same.
        raise _no_weights(file, "it holds no tensors alone" if "weights_only" in said else said) from error
    if not found or not all(isinstance(each, torch.Tensor) for each in found.values()):
        raise _no_weights(file, "it holds something else than tensors by name")
    for name, tensor in found.items():
        if not tensor.is_floating_point() and tensor.dtype not in _COUNTS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise _no_weights(file, f"{name} is of type {kind}, and weights are floating-point numbers")
    return found


def _is_safetensors(file: Path) -> bool:
    """Whether a file is of safetensors, by how it begins: it may have any name."""
    with file.open("rb") as opened:
        begin = opened.read(_LENGTH_NBYTES + 1)
    header_nbytes = int.from_bytes(begin[:_LENGTH_NBYTES], "little")
    is_json = begin[_LENGTH_NBYTES:] == b"{"
    return is_json and _LENGTH_NBYTES + header_nbytes <= file.stat().st_size


def exported_model(file: Path) -> ExportedModel | None:
    """Return what an exported model says of itself; None of other files, and of other features than images.

    file: of which `read_tensors` has read the tensors.
    """
    if not _is_safetensors(file):
        return None
    with safe_open(str(file), "pt") as opened:
        described = opened.metadata() or {}
    try:
        features, classes = (json.loads(described.get(name, "null")) for name in ("features", "classes"))
    except ValueError:
        return None
    if not isinstance(features, dict) or features.get("kind") != "image":
        return None
    return _model_of(features, num_outputs=len(classes) if isinstance(classes, list) else 1)


def _model_of(features: Mapping[str, Any], *, num_outputs: int) -> ExportedModel | None:
    size, mean, scale = (_numbers(features.get(name)) for name in ("size", "mean", "scale"))
    if len(size) != 2 or min(size) < 1 or not scale or len(mean) != len(scale) or min(scale) <= 0:
        return None
    if features.get("dtypes") != ["uint8"]:
        mean = scale = ()
    return ExportedModel(num_outputs=num_outputs, size=(int(size[0]), int(size[1])), mean=mean, scale=scale)


def _numbers(value: object) -> tuple[float, ...]:
    """Return a list of numbers; () for anything else."""
    if not isinstance(value, list):
        return ()
    numbers = [each for each in value if isinstance(each, int | float) and isfinite(each)]
    return tuple(map(float, numbers)) if len(numbers) == len(value) else ()


def _no_weights(file: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{file} has no weights that can be read: {why.splitlines()[0]}",
        hint="Give a .safetensors file, or a state dict that torch.save has written.",
    )
