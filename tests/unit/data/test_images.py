"""Images in the formats that people have."""

import io

import numpy as np
import pytest
from PIL import Image

from tensile_db.data.images import decode, from_raw, probe, resize, to_channels
from tensile_db.errors import RaggedArray, UndecodableImage


def _encoded(pixels: np.ndarray, file_format: str = "PNG", mode: str | None = None) -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(buffer, file_format)
    return buffer.getvalue()


def test_a_grey_png_comes_back_exactly():
    pixels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert decode(_encoded(pixels)).tolist() == pixels[:, :, None].tolist()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_colours_come_back_as_rgb(mode):
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[0, 0] = (255, 0, 0)
    assert decode(_encoded(pixels, mode=mode)).tolist() == pixels.tolist()


def test_a_jpeg_comes_back_nearly():
    pixels = np.full((16, 16), 100, np.uint8)
    assert np.abs(decode(_encoded(pixels, "JPEG")).astype(int) - 100).max() <= 2


def test_sixteen_bits_are_scaled_and_not_clipped():
    pixels = np.array([[0, 0x8000, 0xFFFF]], np.uint16)
    assert decode(_encoded(pixels)).reshape(-1).tolist() == [0, 128, 255]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"hello world", r"no image that can be decoded \(11 bytes"),
        (_encoded(np.zeros((64, 64), np.uint8))[:60], "damaged image"),
        (b"\x89PNG", "is a damaged image: its 4 bytes begin as those of a PNG do"),
        (
            b"RIFF\x10\0\0\0WEBP",
            "is a damaged image: its 12 bytes begin as those of a WebP do",
        ),
    ],
)
def test_bytes_that_are_no_image_are_refused(data, message):
    with pytest.raises(UndecodableImage, match=message) as refusal:
        decode(data)
    assert "raw_shape" not in refusal.value.hint


def test_a_format_whose_decoder_starts_a_program_is_not_tried():
    eps = _encoded(np.zeros((4, 4), np.uint8), "EPS")
    with pytest.raises(UndecodableImage, match="no image that can be decoded"):
        decode(eps)


def test_a_huge_image_in_a_small_file_is_not_decoded():
    data = _encoded(np.zeros((9000, 9000), bool))
    assert len(data) < 100_000
    for look in (decode, probe):
        with pytest.raises(UndecodableImage, match="9,000 x 9,000 pixels"):
            look(data)


def test_an_image_that_pillow_would_not_open_is_refused_as_too_large():
    data = _encoded(np.zeros((14000, 14000), bool))
    with pytest.raises(UndecodableImage, match="is an image of more than 67,108,864 pixels") as refusal:
        decode(data)
    assert refusal.value.hint.startswith("Make it smaller")


def test_an_image_is_probed_without_its_pixels():
    whole = _encoded(np.zeros((5, 7, 3), np.uint8))
    assert probe(whole[:45]) == (5, 7, 3)


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size_but_never_below_what_is_wanted():
    data = _encoded(np.full((512, 256, 3), 90, np.uint8), "JPEG")
    assert decode(data, (64, 32)).shape == (64, 32, 3)
    assert decode(data, (65, 32)).shape == (128, 64, 3)
    assert decode(data).shape == (512, 256, 3)


def test_raw_bytes_need_the_length_of_their_shape():
    assert from_raw(bytes(range(6)), (1, 2, 3)).tolist() == [[[0, 1, 2], [3, 4, 5]]]
    with pytest.raises(RaggedArray, match="has 5 bytes, but raw_shape"):
        from_raw(bytes(5), (1, 2, 3))


def test_resizing_keeps_a_plane_and_its_dtype():
    for dtype in (np.uint8, np.float32):
        plane = np.full((28, 28, 1), 7, dtype)
        resized = resize(plane, (32, 40))
        assert resized.shape == (32, 40, 1)
        assert resized.dtype == dtype
        assert (resized == 7).all()


def test_grey_becomes_rgb_and_rgb_becomes_grey():
    grey = np.array([[[10]]], np.uint8)
    assert to_channels(grey, 3).tolist() == [[[10, 10, 10]]]
    assert to_channels(np.array([[[255, 0, 0]]], np.uint8), 1).tolist() == [[[76]]]


def test_fractions_stay_fractions_in_grey():
    colour = np.array([[[0.5, 0.5, 0.5]]], np.float32)
    assert to_channels(colour, 1).item() == pytest.approx(0.5)
