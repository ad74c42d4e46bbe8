"""Images: from bytes or numbers to pixels of one size.

Decoded by Pillow, grey images to one channel and all others to RGB.  Resizing is bilinear and averages over
what a pixel covers.
"""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from tensile_db.errors import RaggedArray, UndecodableImage

#: Modes of Pillow whose pixels are grey.
_GREY = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"})


def decode(data: bytes) -> npt.NDArray[np.uint8]:
    """Return an image's pixels, uint8 [height, width, 1 or 3].

    Raises UndecodableImage saying what is wrong, but not which row it is.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.mode.startswith("I;16"):
                return _from_16_bits(image)
            pixels = np.asarray(image.convert("L" if image.mode in _GREY else "RGB"))
    except UnidentifiedImageError:
        raise UndecodableImage(_what_is(data), hint=_HINT) from None
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        # Pillow's decoders raise any of these for damaged files.
        raise UndecodableImage(f"is a damaged image: {error}", hint=_HINT) from error
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def from_raw(data: bytes, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return bytes that are pixels as an image, uint8 [height, width, channels].

    Raises RaggedArray where there are not as many bytes as the shape has.
    """
    want = int(np.prod(shape))
    if len(data) != want:
        raise RaggedArray(
            f"has {len(data):,} bytes, but raw_shape {list(shape)} takes {want:,}",
            hint="Give the raw_shape that the bytes have, or leave it out for PNG and JPEG.",
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def to_channels(pixels: npt.NDArray[Any], channels: int) -> npt.NDArray[Any]:
    """Return an image with 1 or 3 channels: grey is repeated, colours are weighed as Pillow's mode L does."""
    have = pixels.shape[2]
    if have == channels:
        return pixels
    if have == 1:
        return np.repeat(pixels, channels, axis=2)
    if channels == 1:
        grey = pixels[:, :, :3].astype(np.float64) @ (0.299, 0.587, 0.114)
        return grey.round().astype(pixels.dtype)[:, :, None]
    return pixels[:, :, :channels]


def resize(pixels: npt.NDArray[Any], size: tuple[int, int]) -> npt.NDArray[Any]:
    """Return an image of (height, width) `size`, with its channels and dtype (uint8 or float32)."""
    if pixels.shape[:2] == size:
        return pixels
    height, width = size
    if pixels.dtype == np.uint8 and pixels.shape[2] in (1, 3):
        source = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        resized = np.asarray(source.resize((width, height), Image.Resampling.BILINEAR))
        return resized if resized.ndim == 3 else resized[:, :, None]
    layers = [
        np.asarray(
            Image.fromarray(np.ascontiguousarray(pixels[:, :, layer], np.float32)).resize(
                (width, height), Image.Resampling.BILINEAR
            )
        )
        for layer in range(pixels.shape[2])
    ]
    return np.stack(layers, axis=2).astype(pixels.dtype)


def _from_16_bits(image: Image.Image) -> npt.NDArray[np.uint8]:
    # Pillow clips 16 bits to 8 where it should scale them.
    return (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)[:, :, None]


def _what_is(data: bytes) -> str:
    if not data:
        return "is empty, not an image"
    return f"is no image that can be decoded ({len(data):,} bytes, beginning {data[:8].hex(' ')})"


_HINT = (
    "Images may be PNG, JPEG or another format of Pillow's; for bytes that are pixels give"
    " options => '{\"raw_shape\": [height, width, channels]}'. Or leave such rows out by a view."
)
