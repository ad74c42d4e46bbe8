"""A real worker trains on images that are changed at random, through pauses too."""

import pytest

from tests.db.test_worker_pause import ask
from tests.db.test_worker_start_from import PICTURES, refused, trained

CHANGES = {"horizontal_flip": True, "random_crop": 2, "random_resized_crop": 0.5}
AUGMENTED = PICTURES | {"options": {"augmentation": CHANGES}}


def metrics(database, job, split):
    rows = database.execute(
        "SELECT epoch, metric, value FROM tensile.training_metrics WHERE job_id = %s AND split = %s"
        " ORDER BY epoch, metric",
        job["id"],
        split,
    )
    return [(row["epoch"], row["metric"], row["value"]) for row in rows]


def test_images_are_changed_where_they_are_trained_on_and_stay_where_they_are_held_out(
    database, start_worker
):
    start_worker()
    # A step too small to change a weight: what differs is the images.
    still = {"optimizer": "sgd", "learning_rate": 1e-40, "epochs": 2}
    augmented = trained(database, "pictures", **AUGMENTED, **still)
    plain = trained(database, "pictures", **PICTURES, **still)
    none = trained(
        database,
        "pictures",
        **PICTURES | {"options": {"augmentation": {"horizontal_flip": False, "random_crop": 0}}},
        **still,
    )
    (first, second) = metrics(database, augmented, "train")
    assert first[1] == second[1] == "loss"
    assert first[2] != second[2]
    assert metrics(database, none, "train") == metrics(database, plain, "train")
    assert {first[2], second[2]}.isdisjoint({value for *_, value in metrics(database, plain, "train")})


def test_a_training_that_is_paused_sees_the_images_that_it_would_have(database, start_worker):
    start_worker()
    training = AUGMENTED | {"epochs": 40, "learning_rate": 0.02}
    at_once = trained(database, "pictures", **training)
    job = database.submit("pictures", **training)
    database.wait_until(job, lambda row: (row["iteration"] or 0) > 10)
    ask(database, job, pause_requested=True)
    database.wait_until(job, lambda row: row["state"] == "paused")
    ask(database, job, pause_requested=False)
    paused = database.wait(job)
    assert paused["attempt"] == 2
    assert database.weights(job) == database.weights(at_once["id"])


@pytest.mark.parametrize(
    ("source", "request_", "message"),
    [
        (
            "pictures",
            PICTURES | {"options": {"augmentation": {"random_crop": 1000}}},
            "random_crop 1000 could move images of 32 x 32 pixels out of sight",
        ),
        (
            "points",
            {"options": {"augmentation": {"random_crop": 1}}},
            "only images can be augmented, and the features are numbers",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(database, start_worker, source, request_, message):
    start_worker()
    assert refused(database, source, None, **request_) == ("22023", message)
