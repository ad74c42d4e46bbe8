"""A real worker learns numbers, in their own unit, and predicts them."""

import pytest


def test_a_numeric_target_makes_a_regression_in_the_targets_own_unit(database, start_worker):
    database.execute(
        "CREATE TABLE houses AS SELECT i AS id, (i %% 13)::real AS rooms, (i %% 7)::real AS floors,"
        " 200000 + 12500.5 * (i %% 13) - 9000 * (i %% 7) AS price FROM generate_series(1, 200) i"
    )
    database.execute("ALTER TABLE houses OWNER TO anna")
    database.execute("ALTER TABLE houses ADD PRIMARY KEY (id)")
    (spread,) = database.execute(
        "SELECT avg(price)::float8 AS mean, stddev_pop(price)::float8 AS s FROM houses"
    )
    start_worker()
    houses = {"target": "price", "features": ["rooms", "floors"]}
    row = database.wait(database.submit("houses", **houses, epochs=40, optimizer="adam", learning_rate=0.02))
    assert row["state"] == "succeeded", row["error_message"]
    metrics = row["result"]["metrics"]
    assert set(metrics) == {
        "train_loss",
        "validation_loss",
        "validation_mse",
        "validation_rmse",
        "validation_r2",
        "validation_mae",
    }
    # It has learned more than the mean, whose error is the deviation.
    assert metrics["validation_rmse"] < 0.2 * spread["s"]
    assert metrics["validation_mae"] > 1
    assert metrics["train_loss"] < 0.04
    (model,) = database.execute("SELECT * FROM tensile.models WHERE job_id = %s", row["id"])
    # Of the 150 training rows.
    assert model["target_scaling"]["mean"] == pytest.approx(spread["mean"], rel=0.03)
    assert model["target_scaling"]["scale"] == pytest.approx(spread["s"], rel=0.1)
    serving = {"model_id": row["model_id"], "batch_size": 64}
    measured = database.wait(database.submit("houses", kind="evaluate", **houses, **serving))
    assert measured["result"]["metrics"]["rmse"] < 0.2 * spread["s"]
    predicted = database.wait(
        database.submit("houses", kind="predict", features=["rooms", "floors"], **serving)
    )
    (error,) = database.execute(
        "SELECT sqrt(avg((p.prediction::float8 - h.price) ^ 2)) AS rmse, count(*) AS n"
        " FROM tensile.predictions p JOIN houses h ON h.id::text = p.row_key WHERE p.job_id = %s",
        predicted["id"],
    )
    assert error["n"] == 200
    assert error["rmse"] == pytest.approx(measured["result"]["metrics"]["rmse"], rel=1e-4)


def test_a_row_far_from_those_of_the_training_is_named_and_gets_no_prediction(database, start_worker):
    start_worker()
    trained = database.wait(database.submit("points", epochs=1))
    database.execute(
        "CREATE TABLE far AS"
        " SELECT id, CASE id WHEN 7 THEN 1e60 ELSE a::float8 END AS a, b, label FROM points"
    )
    database.execute("ALTER TABLE far ADD PRIMARY KEY (id); ALTER TABLE far OWNER TO anna")
    for kind in ("predict", "evaluate"):
        row = database.wait(database.submit("far", kind=kind, model_id=trained["model_id"], batch_size=64))
        assert (row["state"], row["error_sqlstate"]) == ("failed", "22000")
        assert row["error_message"] == 'the feature "a" of row id=7 holds NaN or a number out of range'


def test_outputs_that_are_no_numbers_are_no_predictions(database, start_worker):
    start_worker()
    trained = database.wait(database.submit("points", epochs=1))
    database.execute(
        "UPDATE tensile.model_weights SET data = decode(repeat('0000c07f', octet_length(data) / 4), 'hex')"
    )
    for kind in ("predict", "evaluate"):
        row = database.wait(database.submit("points", kind=kind, model_id=trained["model_id"], batch_size=64))
        assert (row["state"], row["error_sqlstate"]) == ("failed", "22000")
        assert row["error_message"] == "the network's output for row 1 is NaN or infinite"
    assert database.execute("SELECT * FROM tensile.predictions") == []


def test_a_constant_target_is_learned_and_told(database, start_worker):
    database.execute(
        "CREATE TABLE flat AS SELECT i AS id, i::real AS a, 5e6::float8 AS y FROM generate_series(1, 40) i"
    )
    database.execute("ALTER TABLE flat OWNER TO anna")
    start_worker()
    row = database.wait(database.submit("flat", target="y", features=["a"], epochs=20))
    assert row["state"] == "succeeded", row["error_message"]
    assert row["result"]["metrics"]["validation_mae"] < 1
    (told,) = database.execute(
        "SELECT detail->>'message' AS said FROM tensile.job_events WHERE kind = 'notice'"
    )
    assert told["said"] == (
        'column "y" has one value in all 30 rows that are trained on: there is nothing to learn'
    )


def test_a_model_whose_target_was_never_standardised_still_predicts(database, start_worker):
    start_worker()
    row = database.wait(
        database.submit(
            "points", target="b", features=["a", "b"], epochs=40, optimizer="adam", learning_rate=0.02
        )
    )
    serving = {"kind": "predict", "features": ["a", "b"], "model_id": row["model_id"], "batch_size": 64}
    predictions = "SELECT prediction::float8 AS y FROM tensile.predictions WHERE job_id = %s ORDER BY ordinal"
    (scaling,) = database.execute(
        "SELECT target_scaling AS s FROM tensile.models WHERE id = %s", row["model_id"]
    )
    new = database.execute(predictions, database.wait(database.submit("points", **serving))["id"])
    database.execute("UPDATE tensile.models SET target_scaling = NULL")
    old = database.execute(predictions, database.wait(database.submit("points", **serving))["id"])
    mean, scale = scaling["s"]["mean"], scaling["s"]["scale"]
    assert [number["y"] * scale + mean for number in old] == pytest.approx(
        [number["y"] for number in new], rel=1e-5
    )
