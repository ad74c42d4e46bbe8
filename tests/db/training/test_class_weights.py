"""A real worker gives classes weights in the loss."""

import numpy as np
import pytest

from tensile_db.data.split import split
from tests.db.training.tables import add_table
from tests.jobs.ended_jobs import refused, trained

#: One row of ten is of the second class, which nothing tells from the first but a little.
RARE = """
    CREATE TABLE rare AS
    SELECT i AS id, (sin(i * i) + CASE WHEN i %% 10 = 0 THEN 0.5 ELSE 0 END)::real AS a,
           (i %% 10 = 0) AS label
    FROM generate_series(1, 400) i
"""
TRAINING = {"optimizer": "adam", "learning_rate": 0.02, "epochs": 20, "batch_size": 50}


@pytest.fixture
def rare(database):
    add_table(database, "rare", RARE)
    return database


def found(database, job):
    """Return how many rows of the rare class a model finds."""
    (model,) = database.execute("SELECT id FROM tensile.models WHERE job_id = %s", job["id"])
    done = database.wait(
        database.submit("rare", kind="predict", features=["a"], model_id=model["id"], batch_size=100)
    )
    (row,) = database.execute(
        "SELECT count(*) AS n FROM tensile.predictions p JOIN rare r ON r.id::text = p.row_key"
        " WHERE p.job_id = %s AND p.prediction = 'true' AND r.label",
        done["id"],
    )
    return row["n"]


def test_a_rare_class_is_found_where_classes_are_balanced(rare, start_worker):
    start_worker()
    plain = trained(rare, "rare", features=["a"], **TRAINING)
    balanced = trained(rare, "rare", features=["a"], **TRAINING, options={"class_weights": "balanced"})
    assert 2 * found(rare, plain) < found(rare, balanced)
    # Metrics are of the rows as they are: weights are the training's alone.
    of_plain, of_balanced = (job["result"]["metrics"] for job in (plain, balanced))
    assert of_plain["validation_loss"] < of_balanced["validation_loss"]
    assert of_plain["validation_accuracy"] > of_balanced["validation_accuracy"]
    assert of_plain["validation_balanced_accuracy"] < of_balanced["validation_balanced_accuracy"]
    # What "balanced" stands for can be given.
    codes = np.arange(1, 401) % 10 == 0
    rows, _ = split(400, plain["validation"], 0, codes.astype(np.int64))
    of_each = {"false": int((~codes[rows]).sum()), "true": int(codes[rows].sum())}
    weights = {name: len(rows) / (2 * count) for name, count in of_each.items()}
    given = trained(rare, "rare", features=["a"], **TRAINING, options={"class_weights": weights})
    assert rare.weights(given["id"]) == rare.weights(balanced["id"])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"maybe": 2}, 'unknown class in class_weights "maybe"'),
        (3, 'option "class_weights" cannot be 3'),
        ({}, 'option "class_weights" cannot be {}'),
    ],
)
def test_what_is_no_class_and_what_are_no_weights_are_refused(rare, start_worker, weights, message):
    start_worker()
    request = {"features": ["a"], "options": {"class_weights": weights}}
    assert refused(rare, "rare", **request) == ("22023", message)
