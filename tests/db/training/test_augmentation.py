"""A real worker trains on images that are cropped, shifted and flipped at random, through pauses too."""

import gc
import threading

import pytest

from tests.jobs.ended_jobs import refused, trained
from tests.jobs.picture_jobs import NETWORK

CHANGES = {"horizontal_flip": True, "random_crop_padding": 2, "random_resized_crop_area": 0.5}
AUGMENTED = NETWORK | {"options": {"augmentation": CHANGES}}


def metrics(database, job, split):
    rows = database.execute(
        "SELECT epoch, metric, value FROM tensile.training_metrics WHERE job_id = %s AND split = %s"
        " ORDER BY epoch, metric",
        job["id"],
        split,
    )
    return [(row["epoch"], row["metric"], row["value"]) for row in rows]


def test_images_are_augmented_where_they_are_trained_on_alone(database, start_worker):
    start_worker()
    # A step too small to change a weight, and no batch norm: what differs is the images.
    still = {
        "architecture": "mlp",
        "features": ["image"],
        "batch_size": 8,
        "optimizer": "sgd",
        "learning_rate": 1e-40,
        "epochs": 2,
    }
    shape = {"raw_shape": [8, 8]}
    augmented = trained(database, "pictures", **still, options=shape | {"augmentation": CHANGES})
    plain = trained(database, "pictures", **still, options=shape)
    off = {"horizontal_flip": False, "random_crop_padding": 0}
    none = trained(database, "pictures", **still, options=shape | {"augmentation": off})
    (first, second) = metrics(database, augmented, "train")
    assert first[1] == second[1] == "loss"
    losses = {first[2], second[2]} | {value for *_, value in metrics(database, plain, "train")}
    assert len(losses) == 4
    assert metrics(database, none, "train") == metrics(database, plain, "train")
    held_out = metrics(database, plain, "validation")
    assert held_out == metrics(database, augmented, "validation")
    assert "loss" in {metric for _, metric, _ in held_out}


@pytest.mark.thorough
def test_a_training_that_is_paused_sees_the_images_that_it_would_have(database, start_worker, pause):
    start_worker()
    training = AUGMENTED | {"epochs": 4, "learning_rate": 0.02}
    at_once = trained(database, "pictures", **training)
    # Garbage may be collected while a lock is held that the thread ahead waits for: it ends without.
    gc.disable()
    try:
        job = pause.before(8, database, "pictures", **training)
        assert not [thread for thread in threading.enumerate() if thread.name == "tensile-prefetch"]
    finally:
        gc.enable()
    database.ask(job, pause_requested=False)
    paused = database.wait(job)
    assert paused["attempt"] == 2
    assert database.weights(job) == database.weights(at_once["id"])


@pytest.mark.parametrize(
    ("source", "request_", "message"),
    [
        (
            "pictures",
            NETWORK | {"options": {"augmentation": {"random_crop_padding": 1000}}},
            "random_crop_padding 1000 could move images of 32 x 32 pixels out of sight",
        ),
        (
            "points",
            {"options": {"augmentation": {"random_crop_padding": 1}}},
            "only images can be augmented, and the features are numbers",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(database, start_worker, source, request_, message):
    start_worker()
    assert refused(database, source, **request_) == ("22023", message)
