"""Images: from bytes or numbers to pixels of one size.

Decoded by Pillow, grey images to one channel and all others to RGB.  Resizing is bilinear, averages over what
a pixel covers, and does not keep the sides' ratio.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from tensile_db.errors import RaggedArray, UndecodableImage

#: What people store, and no more: some of Pillow's formats start programs (EPS runs Ghostscript).
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

#: A small file can hold a huge image: 64 Mi pixels take 192 MiB when decoded.
_MAX_PIXELS = 64 * 2**20
_TOO_LARGE_HINT = "Make it smaller, or leave such rows out by a view."

#: Modes of Pillow whose pixels are grey.
_GREY = frozenset({"1", "L", "LA", "La", "I", "F", "I;16", "I;16B", "I;16L", "I;16N"})


class NoImageFile(UndecodableImage):
    """Bytes that do not even begin as an image's file: they may be pixels."""


def probe(data: bytes) -> tuple[int, int, int]:
    """Return an image's height, width and channels (1 or 3) without decoding its pixels.

    Raises UndecodableImage as `decode` does.
    """
    with _opened(data) as image:
        return image.height, image.width, _channels(image)


def decode(data: bytes, size: tuple[int, ...] | None = None) -> npt.NDArray[np.uint8]:
    """Return an image's pixels, uint8 [height, width, 1 or 3].

    size: the (height, width) that it will be resized to: a JPEG several times as large is decoded at a
    half, a quarter or an eighth of its own size, which is never smaller, and much faster.
    Raises UndecodableImage saying what is wrong, but not which row it is.
    """
    with _opened(data) as image:
        if image.mode.startswith("I;16"):
            # Pillow clips 16 bits to 8 where it should scale them.
            return (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)[:, :, None]
        if size is not None:
            image.draft(image.mode, (size[1], size[0]))
        pixels = np.asarray(image.convert("L" if _channels(image) == 1 else "RGB"))
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
        return (grey.round() if pixels.dtype == np.uint8 else grey).astype(pixels.dtype)[:, :, None]
    return pixels[:, :, :channels]


def resize(pixels: npt.NDArray[Any], size: tuple[int, ...]) -> npt.NDArray[Any]:
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


@contextmanager
def _opened(data: bytes) -> Iterator[Image.Image]:
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > _MAX_PIXELS:
                raise UndecodableImage(
                    f"is an image of {image.width:,} x {image.height:,} pixels, more than {_MAX_PIXELS:,}",
                    hint=_TOO_LARGE_HINT,
                )
            yield image
    except UnidentifiedImageError:
        raise _unidentified(data) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        # Pillow's own limit is larger, and it does not tell the size.
        raise UndecodableImage(
            f"is an image of more than {_MAX_PIXELS:,} pixels", hint=_TOO_LARGE_HINT
        ) from None
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        # Pillow's decoders raise any of these for damaged files.
        raise UndecodableImage(f"is a damaged image: {error}", hint=_DAMAGED_HINT) from error


def _channels(image: Image.Image) -> int:
    return 1 if image.mode in _GREY else 3


def _unidentified(data: bytes) -> UndecodableImage:
    for name, begin in _BEGINNINGS:
        if data.startswith(begin):
            message = f"is a damaged image: its {len(data):,} bytes begin as those of a {name} do"
            return UndecodableImage(message, hint=_DAMAGED_HINT)
    message = f"is no image that can be decoded ({len(data):,} bytes, beginning {data[:8].hex(' ')})"
    return NoImageFile(message if data else "is empty, not an image", hint=_NO_FILE_HINT)


#: What begins a file, where bytes that are pixels hardly begin so.
_BEGINNINGS = (("PNG", b"\x89PNG"), ("JPEG", b"\xff\xd8\xff"), ("GIF", b"GIF8"), ("WebP", b"RIFF"))

_DAMAGED_HINT = "Leave such rows out by a view, or replace them."
#: Of bytes that do not begin as a file.
_NO_FILE_HINT = "Images may be PNG, JPEG, WebP, GIF or BMP; or leave such rows out by a view."
