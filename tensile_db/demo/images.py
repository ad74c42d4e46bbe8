"""The demo's images: Fashion-MNIST as Debian packages it, else the digits that scikit-learn ships.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST" (2017), 28 by 28 grey photographs of ten kinds of clothes.
"""

import gzip
import io
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tensile_db.errors import NotInstalled

#: Debian's and Ubuntu's package dataset-fashion-mnist.
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

_PIXELS = "train-images-idx3-ubyte.gz"

FASHION_LABELS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """Labelled grey images."""

    #: Where they come from, for people.
    source: str
    #: Shape (images, height, width), uint8.
    pixels: NDArray[np.uint8]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, begin: int, end: int) -> "ImageSet":
        """Return the images from `begin` to before `end`."""
        return ImageSet(source=self.source, pixels=self.pixels[begin:end], labels=self.labels[begin:end])


def load_images(count: int, folder: Path = FASHION_MNIST) -> ImageSet:
    """Return the first `count` images, or as many as there are; both sets come well mixed.

    Raises NotInstalled where there is neither set.
    """
    if (folder / _PIXELS).is_file():
        return _fashion_mnist(folder, count)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise NotInstalled(
            "there are no images for the demo",
            hint="apt-get install dataset-fashion-mnist, or: pip install 'tensile_db[demo]'.",
        ) from error
    digits = load_digits()
    # Their grey levels go from 0 to 16.
    pixels = np.minimum(digits.images[:count] * 16, 255).astype(np.uint8)
    labels = tuple(str(digit) for digit in digits.target[:count])
    return ImageSet(source="scikit-learn's handwritten digits", pixels=pixels, labels=labels)


def as_png(pixels: NDArray[np.uint8]) -> bytes:
    """Return one image, shape (height, width) or (height, width, 3), as a PNG file."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def _fashion_mnist(folder: Path, count: int) -> ImageSet:
    pixels = read_idx(folder / _PIXELS, count)
    numbers = read_idx(folder / "train-labels-idx1-ubyte.gz", count)
    labels = tuple(FASHION_LABELS[number] for number in numbers)
    return ImageSet(source="Fashion-MNIST", pixels=pixels, labels=labels)


def read_idx(path: Path, count: int) -> NDArray[np.uint8]:
    """Return the first `count` items of a compressed IDX file of unsigned bytes.

    The format: two zero bytes, the type (8), the number of dimensions, each dimension big-endian, the data.
    Raises NotInstalled where the file is none.
    """
    with gzip.open(path) as file:
        zeros, kind, dimensions = struct.unpack(">HBB", file.read(4))
        if zeros != 0 or kind != 8:
            raise NotInstalled(f"{path} is no IDX file of bytes", hint="Install dataset-fashion-mnist again.")
        shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        taken = (min(count, shape[0]), *shape[1:])
        return np.frombuffer(file.read(int(np.prod(taken))), dtype=np.uint8).reshape(taken)
