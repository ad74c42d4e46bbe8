"""The file of what a frozen backbone makes of rows, and the look at whether rows stand for themselves."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tensile_db.capture.frozen_steps import BackboneFeature
from tensile_db.worker.jobs import backbone_features, extracting
from tensile_db.worker.jobs.backbone_features import BackboneFeatures, DiskFull, FeatureFile, to_bytes

#: Of a row, 6 and 12 bytes.
KINDS = (
    BackboneFeature(dtype=torch.bfloat16, shape=(3,)),
    BackboneFeature(dtype=torch.float32, shape=(1, 3)),
)
COUNT, SIZE = 7, 3


def outputs(rows):
    numbers = torch.arange(rows * 3.0).reshape(rows, 3)
    return {"a": numbers.to(torch.bfloat16), "b": -numbers.reshape(rows, 1, 3)}


def batches():
    """Return all rows in batches, the last of which is padded."""
    made = to_bytes(outputs(COUNT))
    padded = np.concatenate([made, made[-1:], made[-1:]])
    return [padded[first : first + SIZE] for first in range(0, COUNT, SIZE)]


@pytest.fixture
def file(tmp_path):
    return FeatureFile(tmp_path / "features", KINDS, count=COUNT)


def test_rows_come_back_bit_for_bit(file, tmp_path):
    assert file.begin(SIZE) == 0
    file.append(batches())
    assert not file.is_whole
    file.finish()
    assert file.is_whole
    assert (tmp_path / "features").stat().st_size == COUNT * 18
    features = BackboneFeatures(tmp_path / "features", KINDS, count=COUNT)
    want, target = outputs(COUNT), np.arange(COUNT)
    rows = np.array([5, 0, 6])
    first, second, rest = features.batch(rows, target[rows])
    assert (first.dtype, second.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(first, want["a"][rows])
    assert torch.equal(second, want["b"][rows])
    assert rest.tolist() == [5, 0, 6]
    padded, _ = features.padded(rows, 5)
    assert torch.equal(padded, want["a"][[5, 0, 6, 6, 6]])


def test_another_writer_goes_on_behind_the_last_whole_batch(file, tmp_path):
    file.begin(SIZE)
    file.append(batches()[:2])
    (part,) = tmp_path.iterdir()
    with part.open("ab") as torn:
        torn.write(b"?")
    again = FeatureFile(tmp_path / "features", KINDS, count=COUNT)
    assert again.begin(SIZE) == 2
    again.append(batches()[2:])
    again.finish()
    assert (tmp_path / "features").read_bytes() == to_bytes(outputs(COUNT)).tobytes()


def test_what_a_boot_may_have_lost_is_made_anew(file, tmp_path, monkeypatch):
    file.begin(SIZE)
    file.append(batches()[:2])
    monkeypatch.setattr(backbone_features, "boot_identity", lambda: "another")
    assert FeatureFile(tmp_path / "features", KINDS, count=COUNT).begin(SIZE) == 0


def test_a_disk_without_room_is_told_of(file, tmp_path, monkeypatch):
    monkeypatch.setattr(backbone_features, "share_of_disk_nbytes", lambda folder: 0)
    with pytest.raises(DiskFull, match="the disk has no room for 126 bytes of features"):
        file.begin(SIZE)
    monkeypatch.undo()
    file.begin(SIZE)
    (part,) = tmp_path.iterdir()
    part.unlink()
    part.symlink_to("/dev/full")
    with pytest.raises(DiskFull, match="the features cannot be written: No space left on device"):
        file.append(batches())
    file.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("made_of", "is_apart"),
    [
        (lambda images: images * 2, True),
        # Rounding by a row's place, as vectorised kernels do at an array's end.
        (lambda images: images * (1 + 2e-7 * torch.arange(len(images))[:, None]), True),
        (lambda images: images - images.max(0).values, False),
        (lambda images: images - images.mean(0), False),
        (lambda images: images - images[0], False),
        (lambda images: images + torch.arange(len(images))[:, None], False),
    ],
)
@pytest.mark.parametrize("rows", [2, 3, 8])
def test_rows_that_depend_on_others_by_more_than_rounding_are_found_out(made_of, is_apart, rows):
    images = np.random.default_rng(3).integers(1, 200, (rows, 4)).astype(np.float32)
    kinds = (BackboneFeature(dtype=torch.float32, shape=(4,)),)

    def run(batch, *, iteration):
        return SimpleNamespace(outputs={"a": made_of(torch.from_numpy(batch[0])).float()})

    made = to_bytes(run((images,), iteration=1).outputs)
    before = images.copy()

    def look():
        extracting._require_rows_apart(SimpleNamespace(run=run), kinds, (images,), made, iteration=1)

    if is_apart:
        look()
    else:
        with pytest.raises(extracting._RowsDepend):
            look()
    assert np.array_equal(images, before)
