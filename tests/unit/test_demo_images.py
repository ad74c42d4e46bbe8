"""The demo's images, from the files of Debian's package and from scikit-learn."""

import gzip
import io

import numpy as np
import pytest
from PIL import Image

from tensile_db.demo.images import as_png, load_images
from tensile_db.errors import NotInstalled


@pytest.fixture
def packaged(tmp_path):
    """Three images of 2 by 2 as dataset-fashion-mnist lays them out."""
    pixels = bytes(range(12))
    with gzip.open(tmp_path / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(b"\0\0\x08\x03" + b"\0\0\0\x03" + b"\0\0\0\x02" * 2 + pixels)
    with gzip.open(tmp_path / "train-labels-idx1-ubyte.gz", "wb") as file:
        file.write(b"\0\0\x08\x01" + b"\0\0\0\x03" + bytes([9, 0, 5]))
    return tmp_path


def test_the_packaged_files_are_read_in_order(packaged):
    images = load_images(2, packaged)
    assert images.source == "Fashion-MNIST"
    assert images.labels == ("Ankle boot", "T-shirt/top")
    assert images.pixels.tolist() == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_asking_for_more_images_than_there_are_gives_all(packaged):
    assert len(load_images(100, packaged)) == 3


def test_a_part_keeps_images_and_labels_together(packaged):
    part = load_images(3, packaged).part(1, 3)
    assert part.labels == ("T-shirt/top", "Sandal")
    assert part.pixels[0].tolist() == [[4, 5], [6, 7]]


def test_a_file_of_another_kind_is_refused(packaged):
    with gzip.open(packaged / "train-images-idx3-ubyte.gz", "wb") as file:
        file.write(b"\x89PNG rather than IDX")
    with pytest.raises(NotInstalled, match="is no IDX file"):
        load_images(2, packaged)


@pytest.mark.slow
def test_without_the_package_the_digits_of_scikit_learn_serve(tmp_path):
    images = load_images(5, tmp_path / "absent")
    assert images.source == "scikit-learn's handwritten digits"
    assert images.labels == ("0", "1", "2", "3", "4")
    assert images.pixels.shape == (5, 8, 8)
    assert images.pixels.max() == 255


def test_a_png_holds_the_same_pixels():
    pixels = np.array([[0, 255], [17, 4]], dtype=np.uint8)
    decoded = Image.open(io.BytesIO(as_png(pixels)))
    assert decoded.format == "PNG"
    assert np.asarray(decoded).tolist() == [[0, 255], [17, 4]]
