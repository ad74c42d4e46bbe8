"""Training in float16 on a real worker: a loss scale that finds its size, and is kept with all the rest."""

import pytest

from tensile_db.capture import loss_scale
from tensile_db.worker.jobs import losses

#: Adam counts updates, of which an iteration may be none.
TRAINING = {
    "epochs": 4,
    "optimizer": "adam",
    "learning_rate": 0.01,
    "options": {
        "precision": "fp16",
        "hidden_units": [32, 16],
        "dropout": 0.3,
        "checkpoint_seconds": 1e6,
    },
}
#: Of nine an epoch.
ITERATIONS = 36


@pytest.fixture
def infinite_at_first(monkeypatch):
    """Begin with a scale at which gradients are not finite."""
    monkeypatch.setattr(loss_scale, "_FIRST_SCALE", 2.0**24)


def metrics_of(database, job, metric):
    rows = database.execute(
        "SELECT value FROM tensile.training_metrics WHERE job_id = %s AND split = 'train' AND metric = %s"
        " ORDER BY epoch",
        job,
        metric,
    )
    return [row["value"] for row in rows]


def test_a_job_paused_after_updates_were_left_out_has_the_bits_of_one_that_was_not(
    database, start_worker, infinite_at_first, pause
):
    start_worker()
    plain = database.submit("points", **TRAINING)
    assert database.wait(plain)["state"] == "succeeded"
    skipped, scale = (metrics_of(database, plain, name) for name in ("skipped_updates", "loss_scale"))
    assert skipped[0] > 0
    assert scale[-1] == 2.0 ** (24 - skipped[-1])
    assert len(scale) == TRAINING["epochs"]

    row = pause.trained(ITERATIONS // 2, database, "points", **TRAINING)
    assert row["state"] == "succeeded"
    job = row["id"]
    assert database.weights(job) == database.weights(plain)
    assert metrics_of(database, job, "skipped_updates") == skipped
    names = database.execute(
        "SELECT DISTINCT w.name FROM tensile.model_weights w JOIN tensile.models m ON m.id = w.model_id"
        " WHERE m.job_id = %s",
        job,
    )
    assert {row["name"].split("/")[0] for row in names} == {"parameter"}


def test_a_training_whose_scale_falls_too_low_fails_and_says_so(
    database, start_worker, infinite_at_first, monkeypatch
):
    monkeypatch.setattr(losses, "LEAST_SCALE", 2.0**24)
    start_worker()
    row = database.wait(database.submit("points", **TRAINING))
    assert (row["state"], row["error_sqlstate"], row["iteration"]) == ("failed", "22003", 0)
    assert row["error_message"].startswith("the gradients are not finite in iteration 1 (epoch 1)")
    assert "bfloat16" in row["error_hint"]


def test_a_diverging_training_fails_and_leaves_its_neighbour_alone(database, start_worker):
    start_worker()
    alone = database.submit("points", **TRAINING | {"epochs": 20})
    assert database.wait(alone)["state"] == "succeeded"
    jobs = [
        database.submit("points", **TRAINING | {"epochs": 20}),
        database.submit("points", **TRAINING | {"optimizer": "sgd", "learning_rate": 1e30}),
    ]
    neighbour, diverging = (database.wait(job) for job in jobs)
    assert (diverging["state"], diverging["error_sqlstate"]) == ("failed", "22003")
    assert diverging["error_message"] == "no loss of epoch 2 was finite"
    assert "learning_rate" in diverging["error_hint"]
    assert neighbour["state"] == "succeeded"
    assert database.weights(jobs[0]) == database.weights(alone)
