"""Images that are cropped, shifted and flipped at random each time they are trained on.

What an iteration draws depends on the seed and the iteration alone, so that a training that is paused and
goes on sees the same images.

Source: Szegedy et al., Going Deeper with Convolutions, section 6 (crops of random area and ratio); He et al.,
Deep Residual Learning for Image Recognition, section 4.2 (padded crops, flips).
Differs: images have the network's size before they are cropped, and ratios are relative to their own; padding
is 0 in the source's units.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from math import exp, log, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from tensile_db.data import images
from tensile_db.data.split import random_of_iteration
from tensile_db.errors import InvalidRequest

#: Bounds of a crop's width over its height, relative to the image's; the logarithm is drawn uniformly.
_RATIOS = (3 / 4, 4 / 3)
#: A crop that does not fit into the image is drawn anew, so often; then all of it is taken.
_MOST_DRAWS = 10

#: Pillow lets go of the interpreter's lock while it resizes.
_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """How images are changed, in this order."""

    #: The least share of an image's area of a random crop, which is resized to all of it; None: no crop.
    least_area: float | None = None
    #: Rows and columns of 0 on each side, before a random crop of the image's own size.
    padding: int = 0
    #: Whether each image is flipped left to right with probability 1/2.
    flips: bool = False

    def changed(self, batch: npt.NDArray[Any], seed: int, iteration: int) -> npt.NDArray[Any]:
        """Return the images of an iteration (from 1) as the network is to see them.

        batch: uint8 or float, [rows, channels, height, width]; it is left as it is.
        """
        random = random_of_iteration(seed, iteration)
        made = np.ascontiguousarray(batch)
        if self.least_area is not None:
            made = _resized_crops(made, self.least_area, random)
        if self.padding:
            made = _padded_crops(made, self.padding, random)
        if self.flips:
            is_flipped = random.random(len(made)) < 0.5
            made = np.where(is_flipped[:, None, None, None], made[..., ::-1], made)
        return made


def find_augmentation(options: Mapping[str, Any], size: tuple[int, ...]) -> Augmentation | None:
    """Return what a training's options ask for; None where they ask for nothing.

    size: (height, width) of the network's images; () where features are none.
    Raises InvalidRequest where they are none, or could be moved out of sight.
    """
    asked = options.get("augmentation")
    if not asked:
        return None
    if not size:
        raise InvalidRequest(
            "only images can be augmented, and the features are numbers", hint='Leave out "augmentation".'
        )
    padding = asked.get("random_crop_padding", 0)
    if padding >= min(size):
        raise InvalidRequest(
            f"random_crop_padding {padding} could move images of {size[0]} x {size[1]} pixels out of sight",
            hint=f"Give fewer pixels than {min(size)}.",
        )
    return Augmentation(
        least_area=asked.get("random_resized_crop_area"),
        padding=padding,
        flips=asked.get("horizontal_flip", False),
    )


def _padded_crops(batch: npt.NDArray[Any], padding: int, random: np.random.Generator) -> npt.NDArray[Any]:
    height, width = batch.shape[2:]
    made = np.zeros_like(batch)
    shifts = random.integers(-padding, padding + 1, (len(batch), 2)).tolist()
    for place, (down, right) in enumerate(shifts):
        source = (_overlap(height, -down), _overlap(width, -right))
        made[(place, slice(None), _overlap(height, down), _overlap(width, right))] = batch[
            (place, slice(None), *source)
        ]
    return made


def _overlap(size: int, shift: int) -> slice:
    """Return the places that are taken of as many, once they are shifted."""
    return slice(max(0, shift), size + min(0, shift))


def _resized_crops(
    batch: npt.NDArray[Any], least_area: float, random: np.random.Generator
) -> npt.NDArray[Any]:
    size = batch.shape[2:]
    # Drawn before any thread begins: in the order of the rows.
    boxes = [_box(size, least_area, random) for _ in batch]
    made = np.empty_like(batch)

    def fill(place: int) -> None:
        top, left, height, width = boxes[place]
        part = batch[place, :, top : top + height, left : left + width].transpose(1, 2, 0)
        made[place] = images.resize(np.ascontiguousarray(part), size).transpose(2, 0, 1)

    for _ in _pool().map(fill, range(len(batch))):
        pass
    return made


@cache
def _pool() -> ThreadPoolExecutor:
    """Return the process's threads that resize images."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="tensile-augment")


def _box(size: tuple[int, ...], least_area: float, random: np.random.Generator) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random crop."""
    whole_height, whole_width = size
    for _ in range(_MOST_DRAWS):
        area = random.uniform(least_area, 1.0)
        ratio = exp(random.uniform(log(_RATIOS[0]), log(_RATIOS[1])))
        height, width = round(whole_height * sqrt(area / ratio)), round(whole_width * sqrt(area * ratio))
        if 0 < height <= whole_height and 0 < width <= whole_width:
            top = int(random.integers(0, whole_height - height + 1))
            left = int(random.integers(0, whole_width - width + 1))
            return top, left, height, width
    return 0, 0, whole_height, whole_width
