"""A real worker trains with a learning rate that warms up and falls, through pauses too."""

import math

import pytest

from tests.jobs.ended_jobs import refused, trained

SCHEDULED = {"learning_rate_schedule": "cosine", "warmup_epochs": 1.5, "checkpoint_seconds": 1e6}
TRAINING = {"optimizer": "adamw", "learning_rate": 0.01, "batch_size": 16, "epochs": 4}
#: Of 75 rows, in batches of 16.
UPDATES_AN_EPOCH = 4


def learning_rates(database, job):
    """Return the learning rate of each epoch's last update."""
    rows = database.execute(
        "SELECT value FROM tensile.training_metrics"
        " WHERE job_id = %s AND split = 'train' AND metric = 'learning_rate' ORDER BY epoch",
        job["id"],
    )
    return [row["value"] for row in rows]


def cosine(update):
    """Return the learning rate of an update by the definition in docs/sql/options.md."""
    warmup, updates = 6, 4 * UPDATES_AN_EPOCH
    if update <= warmup:
        return 0.01 * update / warmup
    return 0.01 * (1 + math.cos(math.pi * (update - 1 - warmup) / (updates - warmup))) / 2


def test_the_learning_rate_goes_by_its_schedule_and_is_told(database, start_worker):
    start_worker()
    job = trained(database, **TRAINING, options=SCHEDULED)
    assert learning_rates(database, job) == pytest.approx(
        [cosine(epoch * UPDATES_AN_EPOCH) for epoch in (1, 2, 3, 4)]
    )
    constant = trained(database, **TRAINING)
    assert learning_rates(database, constant) == []
    assert database.weights(job["id"]) != database.weights(constant["id"])
    # Of no warm-up, and a rate that stays, nothing is left.
    same = trained(database, **TRAINING, options={"learning_rate_schedule": "constant", "warmup_epochs": 0})
    assert database.weights(same["id"]) == database.weights(constant["id"])
    (model,) = database.execute("SELECT features FROM tensile.models WHERE job_id = %s", job["id"])
    assert SCHEDULED.items() <= model["features"]["options"].items()


def test_a_training_that_is_paused_goes_on_where_its_schedule_was(database, start_worker, pause):
    start_worker()
    training = TRAINING | {"options": SCHEDULED}
    at_once = trained(database, **training)
    # Within the second epoch.
    paused = pause.trained(UPDATES_AN_EPOCH + 3, database, "points", **training)
    assert database.weights(paused["id"]) == database.weights(at_once["id"])
    assert learning_rates(database, paused) == learning_rates(database, at_once)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate_schedule": "cosin"}, 'option "learning_rate_schedule" cannot be "cosin"'),
        ({"warmup_epochs": "1"}, 'option "warmup_epochs" cannot be "1"'),
        ({"warmup_epochs": 5}, "the learning rate warms up for 5 epochs, and epochs is 4"),
    ],
)
def test_what_came_past_the_functions_is_refused(database, start_worker, options, message):
    start_worker()
    assert refused(database, "points", **TRAINING, options=options) == ("22023", message)
