"""A real worker clips gradients by their norm, through pauses too."""

import pytest

from tests.jobs.ended_jobs import refused, trained

CLIPPED = {"optimizer": "momentum", "learning_rate": 0.5, "options": {"max_gradient_norm": 0.1}}


def norms(database, job):
    rows = database.execute(
        "SELECT value FROM tensile.training_metrics WHERE job_id = %s AND metric = 'gradient_norm'"
        " ORDER BY epoch",
        job["id"],
    )
    return [row["value"] for row in rows]


def test_weights_differ_where_gradients_are_clipped_and_their_norms_are_told(database, start_worker):
    start_worker()
    clipped = trained(database, **CLIPPED, epochs=3)
    assert len(norms(database, clipped)) == 3
    assert max(norms(database, clipped)) > 0.1
    plain = trained(database, **CLIPPED | {"options": {}}, epochs=3)
    assert norms(database, plain) == []
    assert database.weights(clipped["id"]) != database.weights(plain["id"])
    # One that no gradients come to changes nothing.
    large = trained(database, **CLIPPED | {"options": {"max_gradient_norm": 1e6}}, epochs=3)
    assert database.weights(large["id"]) == database.weights(plain["id"])


@pytest.mark.thorough
def test_a_training_that_is_paused_goes_on_to_the_same_weights(database, start_worker, pause):
    start_worker()
    at_once = trained(database, **CLIPPED, epochs=4)
    # Within an epoch, so that of its norms some are of before and some of after.
    paused = pause.trained(14, database, "points", **CLIPPED, epochs=4)
    assert database.weights(paused["id"]) == database.weights(at_once["id"])
    assert norms(database, paused) == norms(database, at_once)


@pytest.mark.parametrize("norm", [0, -1, "1"])
def test_what_is_no_norm_is_refused(database, start_worker, norm):
    start_worker()
    sqlstate, message = refused(database, "points", options={"max_gradient_norm": norm})
    assert sqlstate == "22023"
    assert "max_gradient_norm" in message
