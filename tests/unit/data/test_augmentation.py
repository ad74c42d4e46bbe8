"""Images that are trained on are changed at random, the same in every attempt at an iteration."""

import numpy as np
import pytest

from tensile_db.data.augmentation import Augmentation, find_augmentation
from tensile_db.data.dataset import Features, TrainingSet
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.errors import InvalidRequest

ROWS, HEIGHT, WIDTH = 64, 8, 10

#: Each pixel tells its row, channel and place.
BATCH = (
    np.arange(ROWS)[:, None, None, None] % 4 * 60
    + np.arange(3)[:, None, None] * 20
    + np.arange(HEIGHT)[:, None] * 2
    + np.arange(WIDTH)
).astype(np.uint8)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(flips=True),
        Augmentation(padding=3),
        Augmentation(least_area=0.2),
        Augmentation(least_area=0.2, padding=3, flips=True),
    ],
)
def test_what_is_drawn_depends_on_seed_and_iteration_alone(augmentation, dtype):
    batch = BATCH.astype(dtype)
    made = augmentation.changed(batch, 7, 3)
    assert (made.shape, made.dtype) == (batch.shape, dtype)
    np.testing.assert_array_equal(augmentation.changed(batch, 7, 3), made)
    for seed, iteration in ((7, 4), (8, 3)):
        assert (augmentation.changed(batch, seed, iteration) != made).any()
    # What is mapped from a file must not change.
    np.testing.assert_array_equal(batch, BATCH)


def test_about_every_other_image_is_mirrored_as_a_whole():
    made = Augmentation(flips=True).changed(BATCH, 0, 1)
    is_same = (made == BATCH).all(axis=(1, 2, 3))
    is_mirrored = (made == BATCH[..., ::-1]).all(axis=(1, 2, 3))
    assert (is_same ^ is_mirrored).all()
    assert ROWS // 4 < is_mirrored.sum() < 3 * ROWS // 4


def test_a_padded_crop_moves_an_image_by_as_many_pixels_at_most_and_leaves_0_behind():
    made = Augmentation(padding=2).changed(BATCH + 1, 0, 1)
    seen = set()
    for image, before in zip(made, BATCH + 1, strict=True):
        padded = np.pad(before, ((0, 0), (2, 2), (2, 2)))
        moved = [
            (top, left)
            for top in range(5)
            for left in range(5)
            if (padded[:, top : top + HEIGHT, left : left + WIDTH] == image).all()
        ]
        assert len(moved) == 1
        seen.update(moved)
    assert {top for top, _ in seen} == {left for _, left in seen} == set(range(5))


@pytest.mark.slow
def test_a_resized_crop_has_at_least_its_share_of_the_area_and_about_the_images_ratio():
    # Ramps from top to bottom and from left to right tell where the crop began and how large it was.
    down, right = np.mgrid[0:101, 0:301].astype(np.float32)
    images = np.broadcast_to(np.stack([down, right / 3]), (300, 2, 101, 301)).copy()
    made = Augmentation(least_area=0.25).changed(images, 0, 1)
    heights = (made[:, 0, 80, 150] - made[:, 0, 20, 150]) / 60
    widths = (made[:, 1, 50, 240] - made[:, 1, 50, 60]) / 60
    areas, ratios = heights * widths, widths / heights
    assert (areas.min() > 0.24, areas.max() <= 1.0) == (True, True)
    assert (ratios.min() > 0.72, ratios.max() < 1.37) == (True, True)
    # Drawn all over what they may be.
    assert np.histogram(areas, bins=5, range=(0.25, 1.0))[0].min() > 20
    assert np.histogram(np.log(ratios), bins=4, range=(-0.25, 0.25))[0].min() > 20
    for begin in (made[:, 0, 0, 150], made[:, 1, 50, 0]):
        assert begin.min() < 2
        assert begin.max() > 20


def test_the_options_say_how_images_are_augmented():
    changes = {"horizontal_flip": True, "random_crop_padding": 4, "random_resized_crop_area": 0.5}
    asked = find_augmentation({"augmentation": changes}, (32, 32))
    assert asked == Augmentation(least_area=0.5, padding=4, flips=True)
    padded = {"augmentation": {"random_crop_padding": 4}}
    assert find_augmentation(padded, (5, 9)) == Augmentation(padding=4)
    assert find_augmentation({}, (32, 32)) is None
    with pytest.raises(InvalidRequest, match="could move images of 4 x 9 pixels out of sight"):
        find_augmentation(padded, (4, 9))
    with pytest.raises(InvalidRequest, match="only images can be augmented"):
        find_augmentation({"augmentation": {"horizontal_flip": True}}, ())


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_batches_are_changed_before_they_are_normalised_and_rows_held_out_are_not(dtype):
    values = BATCH.astype(dtype)
    spec = FeatureSpec(
        kind="image",
        columns=("image",),
        source_shape=(HEIGHT, WIDTH, 3),
        raw=True,
        size=(HEIGHT, WIDTH),
        channels=3,
        mean=(1.0, 2.0, 3.0),
        scale=(2.0, 2.0, 2.0),
    )
    augmentation = Augmentation(padding=3, flips=True)
    features = Features(values=values, spec=spec)

    def rows(augmented):
        return TrainingSet(
            features,
            np.arange(ROWS),
            training_rows=np.arange(48),
            validation_rows=np.arange(48, ROWS),
            batch_size=16,
            seed=5,
            augmentation=augmentation if augmented else None,
        )

    batches = rows(augmented=True)
    ahead = batches.training(1)
    seen = [next(ahead) for _ in range(5)]
    ahead.close()
    for iteration, (found, codes, *_) in enumerate(seen, 1):
        want = augmentation.changed(values[codes], 5, iteration)
        if dtype == np.float32:
            want = (want - np.array(spec.mean, np.float32)[:, None, None]) / np.float32(2)
        np.testing.assert_array_equal(found, want)
    # One that goes on later sees the same.
    later = batches.training(4)
    np.testing.assert_array_equal(next(later)[0], seen[3][0])
    later.close()
    held_out = [next(iter(part.validation(16)))[0][0] for part in (batches, rows(augmented=False))]
    np.testing.assert_array_equal(*held_out)
