"""What the section `product` trains, and on which images."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensile_db.demo.images import as_png

CLASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Coloured squares that tell their class by their brightness, and noise."""

    #: [rows, 3, height, width], uint8.
    pixels: NDArray[np.uint8]
    #: [rows], from 0.
    labels: NDArray[np.int64]

    def rows(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield (id from 1, PNG, label) of each."""
        for number, (pixels, label) in enumerate(
            zip(self.pixels, self.labels.tolist(), strict=True), start=1
        ):
            yield number, as_png(pixels.transpose(1, 2, 0)), label


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A training, as tensile_train is asked for it."""

    architecture: str
    model: str
    optimizer: str
    epochs: int
    batch_size: int
    learning_rate: float
    image_size: int
    validation: float = 0.25
    seed: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """Return the function's arguments by name."""
        return {name: value for name, value in asdict(self).items() if name != "image_size"}

    def with_options(self, model: str, **options: Any) -> "Request":
        """Return it for another model, with further options."""
        return replace(self, model=model, options={**self.options, **options})


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """The images, and two trainings on them."""

    images: Images
    first: Request
    second: Request


def draw_images(count: int, size: int) -> Images:
    """Return the same images whenever asked for as many of a size, a multiple of 8."""
    random = np.random.default_rng(1)
    labels = np.arange(count) % CLASSES
    noise = random.integers(0, 96, (count, 3, 8, 8))
    coarse = (noise + 40 * labels[:, None, None, None]).astype(np.uint8)
    pixels = coarse.repeat(size // 8, axis=2).repeat(size // 8, axis=3)
    return Images(pixels=pixels, labels=labels)


def subjects(*, quick: bool) -> Subjects:
    """Return what is trained: dropout, momentum and Adam's moments, batch statistics, attention."""
    rows, size, batch, epochs = (64, 32, 8, 6) if quick else (160, 224, 16, 12)
    names = ("test_resnet", "test_vit") if quick else ("resnet50", "vit_small_patch16_224")

    def request(architecture: str, optimizer: str, learning_rate: float, **options: Any) -> Request:
        return Request(
            architecture=architecture,
            model=architecture,
            optimizer=optimizer,
            epochs=epochs,
            batch_size=batch,
            learning_rate=learning_rate,
            image_size=size,
            options={"image_size": size, **options},
        )

    return Subjects(
        images=draw_images(rows, size),
        first=request(names[0], "momentum", 0.01, dropout=0.2),
        second=request(names[1], "adamw", 0.0005),
    )
