"""A real worker stops a training that has a patience, and keeps the best epoch, whatever comes between."""

import re

import pytest

from tests.jobs import ended_jobs
from tests.jobs.ended_jobs import notices, refused

#: Labels that mean nothing: what is learned of the rows trained on soon makes the others worse.
NOISE = """
    CREATE TABLE noise AS
    SELECT i AS id, sin(i)::real AS a, cos(3 * i)::real AS b, left(md5(i::text), 1) < '8' AS label
    FROM generate_series(1, 64) i
"""
TRAINING = {"optimizer": "adam", "learning_rate": 0.01, "epochs": 200}
#: Of 64 rows, less a quarter held out, in batches of 8.
ITERATIONS_AN_EPOCH = 6


@pytest.fixture
def noise(database):
    database.execute(NOISE)
    database.execute("ALTER TABLE noise OWNER TO anna; ALTER TABLE noise ADD PRIMARY KEY (id)")
    return database


def trained(database, patience, **request):
    options = {"hidden_units": [32], "checkpoint_seconds": 1e6} | ({"patience": patience} if patience else {})
    return ended_jobs.trained(database, "noise", **(TRAINING | {"options": options} | request))


def losses(database, job):
    """Return the validation's loss of each epoch."""
    rows = database.execute(
        "SELECT epoch, value FROM tensile.training_metrics"
        " WHERE job_id = %s AND split = 'validation' AND metric = 'loss' ORDER BY epoch",
        job["id"],
    )
    assert [row["epoch"] for row in rows] == list(range(1, len(rows) + 1))
    return [row["value"] for row in rows]


def test_the_model_is_the_best_epochs_and_training_stops_after_its_patience(noise, start_worker):
    start_worker()
    job = trained(noise, 4)
    seen, result = losses(noise, job), job["result"]
    best = seen.index(min(seen)) + 1
    assert (result["epochs"], result["epoch"], len(seen)) == (best + 4, best, best + 4)
    assert result["metrics"]["validation_loss"] == seen[best - 1]
    assert notices(noise, job) == [f"the model is of epoch {best}, the best of {best + 4} that were trained"]
    # No epoch before had gone as long without a better one.
    for epoch in range(1, best):
        assert min(seen[:epoch]) > min(seen[epoch : epoch + 4])
    (model,) = noise.execute("SELECT metrics FROM tensile.models WHERE job_id = %s", job["id"])
    assert model["metrics"] == result["metrics"]
    as_long = trained(noise, None, epochs=best)
    assert noise.weights(job["id"]) == noise.weights(as_long["id"])
    assert (as_long["result"]["epochs"], as_long["result"]["epoch"]) == (best, best)
    assert notices(noise, as_long) == []


@pytest.mark.thorough
def test_of_a_training_that_its_patience_does_not_end_the_model_is_the_best_epochs_too(noise, start_worker):
    start_worker()
    job = trained(noise, 1000, epochs=30)
    seen = losses(noise, job)
    best = seen.index(min(seen)) + 1
    assert (job["result"]["epochs"], job["result"]["epoch"]) == (30, best)
    assert best < 30
    assert noise.weights(job["id"]) == noise.weights(trained(noise, None, epochs=best)["id"])


def test_of_a_training_that_diverges_the_best_epoch_is_kept(noise, start_worker):
    start_worker()
    # Each update makes weights four times larger.
    growing = {"optimizer": "sgd", "learning_rate": 1.0}
    options = {"hidden_units": [32], "weight_decay": 5.0}
    job = trained(noise, None, options=options | {"patience": 100}, **growing)
    result = job["result"]
    assert 1 < result["epochs"] == job["iteration"] // ITERATIONS_AN_EPOCH
    best = result["epoch"]
    (said,) = notices(noise, job)
    why, _, what = said.partition(": ")
    assert re.fullmatch(r"the loss became (nan|inf) in iteration \d+ \(epoch \d+\)", why)
    assert what.startswith(
        f"the model is of epoch {best}, the best of {result['epochs']} that were trained. Use a smaller"
    )
    as_long = trained(noise, None, options=options, epochs=best, **growing)
    assert noise.weights(job["id"]) == noise.weights(as_long["id"])


@pytest.mark.thorough
def test_one_that_is_paused_behind_its_best_epoch_stops_where_it_would_have(noise, start_worker, pause):
    start_worker()
    without = trained(noise, 100)
    best = without["result"]["epoch"]
    behind = (best + 5) * ITERATIONS_AN_EPOCH
    options = {"hidden_units": [32], "checkpoint_seconds": 1e6, "patience": 100}
    job = pause.before(behind + 2, noise, "noise", **TRAINING, options=options)
    kept = noise.execute(
        "SELECT replace(t.name, 'best/', '') AS name FROM tensile.checkpoint_tensors t"
        " JOIN tensile.checkpoints c ON c.id = t.checkpoint_id"
        " WHERE c.job_id = %s AND starts_with(t.name, 'best/') ORDER BY 1",
        job,
    )
    assert {row["name"] for row in kept} == {name for name, _ in noise.weights(without["id"])}
    noise.ask(job, pause_requested=False)
    row = noise.wait(job)
    assert (row["state"], row["attempt"]) == ("succeeded", 2)
    assert noise.weights(job) == noise.weights(without["id"])
    assert (row["result"]["epochs"], row["result"]["epoch"]) == (best + 100, best)
    assert losses(noise, row) == losses(noise, without)


def test_without_rows_held_out_there_is_nothing_to_stop_by(noise, start_worker):
    start_worker()
    state, message = refused(noise, "noise", validation=0, options={"patience": 3})
    assert state == "22023"
    assert message.startswith("no row is held out")
