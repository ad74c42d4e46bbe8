"""A real worker trains on from the weights of a model, on other rows, with classes that it does not know."""

import numpy as np
import pytest
import torch
from psycopg.types.json import Jsonb
from torch.nn import functional

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.state import model_state
from tensile_db.data.dataset import Features, TrainingSet
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.split import split
from tests.db.training.tables import add_table
from tests.jobs.ended_jobs import model_of, notices, refused, trained
from tests.jobs.picture_jobs import NETWORK

#: So small a step that no weight changes.
STILL = {"optimizer": "sgd", "learning_rate": 1e-40}
MORE = """
    CREATE TABLE more AS
    SELECT i AS id, (100 + i %% 9)::real AS a, (i %% 4)::real AS b,
           CASE WHEN i %% 9 > i %% 4 THEN 'up' WHEN i %% 9 = i %% 4 THEN 'level' ELSE 'down' END AS label
    FROM generate_series(1, 60) i
"""


def tensors(database, job):
    """Return the float32 tensors of a job's model by name, of one part each."""
    shapes = database.execute(
        "SELECT name, shape FROM tensile.model_weights"
        " WHERE dtype = 'float32' AND model_id = (SELECT id FROM tensile.models WHERE job_id = %s)",
        job["id"],
    )
    stored = database.weights(job["id"])
    return {row["name"]: np.frombuffer(stored[row["name"], 0], "<f4").reshape(row["shape"]) for row in shapes}


def test_weights_statistics_and_classes_are_the_models(database, start_worker):
    start_worker()
    first = trained(database)
    add_table(
        database,
        "ups",
        "CREATE TABLE ups AS SELECT id, 50 * a::float8 AS a, b, label FROM points WHERE a > b",
    )
    # One class is enough, where the model knows others.
    second = trained(database, "ups", initial_model_id=first["model_id"], **STILL)
    assert database.weights(second["id"]) == database.weights(first["id"])
    before, after = model_of(database, first), model_of(database, second)
    assert (after["name"], after["version"]) == ("m", 2)
    assert after["classes"] == before["classes"] == ["down", "up"]
    kept = ("mean", "scale", "columns", "source_shape")
    # Of the columns as they are read now: rows that are served are read so.
    assert after["features"]["dtypes"] == ["float64", "float32"]
    assert [after["features"][name] for name in kept] == [before["features"][name] for name in kept]
    assert notices(database, second) == []
    # The job tells of the model that it has made, and of the one that it began with.
    assert (second["model_id"], second["initial_model_id"]) == (after["id"], before["id"])


def test_weights_are_eager_pytorchs_bits_with_one_class_more(database, start_worker, one_thread):
    start_worker()
    first = trained(database)
    add_table(database, "more", MORE)
    second = trained(database, "more", initial_model_id=first["model_id"], epochs=3, seed=5)
    model = model_of(database, second)
    classes = model["classes"]
    assert classes == ["down", "up", "level"]
    assert notices(database, second) == [
        '1 class is new to the model "m" that the training starts from: "level"'
    ]

    rows = database.execute("SELECT a, b, label FROM more ORDER BY id")
    codes = np.array([classes.index(row["label"]) for row in rows])
    spec = FeatureSpec.from_json({k: v for k, v in model["features"].items() if k != "options"})
    training, held_out = split(len(rows), 0.25, 5, codes)
    batches = TrainingSet(
        Features(values=np.array([(row["a"], row["b"]) for row in rows], np.float32), spec=spec),
        codes,
        training_rows=training,
        validation_rows=held_out,
        batch_size=8,
        seed=5,
    )
    network = build("mlp", num_outputs=3, input_shape=(2,), seed=5, options={}).train()
    new = {}
    for name, parameter in network.named_parameters():
        learned = tensors(database, first)[f"parameter/{name}"]
        with torch.no_grad():
            new[name] = parameter[len(learned) :].clone()
            parameter[: len(learned)] = torch.from_numpy(learned.copy())
    # Of the new class alone something begins anew: a row of weights and a bias.
    assert sorted(len(rest) for rest in new.values())[-2:] == [1, 1]
    assert sum(len(rest) for rest in new.values()) == 2
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, foreach=False)
    ahead = batches.training(1)
    for _ in range(3 * batches.batches_per_epoch):
        features, target = map(torch.from_numpy, next(ahead))
        optimizer.zero_grad()
        functional.cross_entropy(network(features), target).backward()
        optimizer.step()
    ahead.close()
    found = tensors(database, second)
    for name, value in model_state(network).items():
        assert found[name].tobytes() == value.numpy().tobytes(), name


def test_numbers_keep_the_unit_that_the_model_learned(database, start_worker):
    start_worker()
    prices = {"target": "price", "options": {"task": "regression"}}
    houses = "SELECT id, a, b, {} AS price FROM points"
    add_table(database, "houses", "CREATE TABLE houses AS " + houses.format("1000 * a::float8 + b"))
    add_table(database, "dear", "CREATE TABLE dear AS " + houses.format("9000 * a::float8 + b"))
    add_table(database, "far", "CREATE TABLE far AS " + houses.format("CASE id WHEN 7 THEN 1e38 ELSE a END"))
    add_table(database, "same", "CREATE TABLE same AS " + houses.format("1e-30 * a::float8"))
    first = trained(database, "houses", **prices)
    second = trained(database, "dear", initial_model_id=first["model_id"], **prices, **STILL)
    wrong = refused(database, "points", initial_model_id=first["model_id"])
    assert wrong == (
        "22023",
        'the model "m" that the training starts from predicts a number, and the target is classes',
    )
    assert model_of(database, second)["target_scaling"] == model_of(database, first)["target_scaling"]
    assert database.weights(second["id"]) == database.weights(first["id"])
    small = trained(database, "same", **prices)
    found = refused(database, "far", initial_model_id=small["model_id"], **prices)
    assert found[0] == "22000"
    assert found[1].startswith('column "price" of row id=7 holds 1e+38, which is more deviations of ')


@pytest.mark.thorough
def test_images_are_made_as_the_models_were(database, start_worker):
    start_worker()
    first = trained(database, "pictures", **NETWORK, epochs=1, options={"image_size": 32})
    add_table(
        database,
        "third",
        # Brighter ones.
        "CREATE TABLE third AS SELECT id, id %% 3 AS label, (SELECT array_agg(p + 20) FROM unnest(image) p)"
        " AS image FROM pictures",
    )
    second = trained(database, "third", **NETWORK, initial_model_id=first["model_id"], epochs=1, **STILL)
    before, after = model_of(database, first), model_of(database, second)
    assert after["classes"] == [0, 1, 2]
    assert [after["features"][name] for name in ("size", "mean", "scale")] == [
        before["features"][name] for name in ("size", "mean", "scale")
    ]
    learned, kept = tensors(database, first), tensors(database, second)
    wider = [name for name in learned if learned[name].shape != kept[name].shape]
    assert [learned[name].shape[0] for name in wider] == [2, 2]
    for name, value in learned.items():
        # Batch norm's statistics go on being counted.
        if name.startswith("parameter/"):
            assert kept[name][: len(value)].tobytes() == value.tobytes(), name


@pytest.mark.thorough
def test_convolutions_take_images_of_another_size_and_transformers_do_not(database, start_worker):
    start_worker()
    first = trained(database, "pictures", **NETWORK, epochs=1, options={"image_size": 32})
    larger = {"options": {"image_size": 48}, "initial_model_id": first["model_id"]}
    third = trained(database, "pictures", **NETWORK, epochs=1, **larger)
    assert model_of(database, third)["features"]["size"] == [48, 48]
    vit = NETWORK | {"architecture": "test_vit"}
    seen = trained(database, "pictures", **vit, epochs=1, options={"image_size": 32})
    # With 5 positions, and as many of them more as there are classes more.
    add_table(database, "ten", "CREATE TABLE ten AS SELECT id, image, id %% 10 AS label FROM pictures")
    add_table(database, "five", "CREATE TABLE five AS SELECT id, image, id %% 5 AS label FROM pictures")
    of_five = trained(database, "five", **vit, epochs=1, options={"image_size": 32})
    for source, model, size in (("pictures", seen, 64), ("ten", of_five, 48)):
        request = vit | {"initial_model_id": model["model_id"], "options": {"image_size": size}}
        found = refused(database, source, **request)
        assert found[0] == "22023"
        assert "the network cannot start from the weights" in found[1]
        assert "pos_embed" in found[1]


def test_pixels_lie_as_the_model_learned_them(database, start_worker):
    start_worker()
    first = trained(database, "pictures", **NETWORK, epochs=1, options={"image_size": 32})
    request = NETWORK | {"initial_model_id": first["model_id"], "options": {"raw_shape": [4, 16]}}
    assert refused(database, "pictures", **request) == (
        "22023",
        "raw_shape [4, 16] is not that of the model that the training starts from, [8, 8, 1]",
    )


@pytest.mark.thorough
def test_an_explanation_is_refused_as_the_training_would_be(database, start_worker):
    start_worker()
    first = trained(database)
    start = {"kind": "explain", "initial_model_id": first["model_id"]}
    explained = trained(database, **start)
    assert "vanilla_peak" in {row["property"] for row in explained["result"]["rows"]}
    found = refused(database, "points", **start, options={"hidden_units": [7]})
    assert found[0] == "22023"
    assert 'the network cannot start from the weights of the model "m"' in found[1]


def test_a_search_leaves_the_model_that_its_trials_start_from(database, start_worker):
    start_worker()
    first = trained(database)
    arguments = (Jsonb({"learning_rate": {"choices": [1e-40, 1e-39]}}), Jsonb({"start_from": "m"}))
    with database.connect() as connection:
        (search,) = connection.execute(
            "SELECT tensile_submit_search('mlp', 'points', %s, method => 'grid', epochs => 1,"
            " batch_size => 8, optimizer => 'sgd', options => %s)",
            arguments,
        ).fetchone()
    assert database.wait(search)["state"] == "succeeded"
    jobs = database.execute("SELECT * FROM tensile.jobs WHERE search_id = %s", search)
    assert [row["initial_model_id"] for row in jobs] == [first["model_id"]] * 2
    versions = database.execute(
        "SELECT version, job_id FROM tensile.models WHERE name = 'm' ORDER BY version"
    )
    assert [row["version"] for row in versions] == [1, 2]
    # Of steps that change nothing the best trial's model is what they began with.
    assert database.weights(versions[1]["job_id"]) == database.weights(first["id"])


def test_dropout_may_be_given_anew(database, start_worker):
    start_worker()
    first = trained(database, options={"dropout": 0.25})
    start = {"initial_model_id": first["model_id"], **STILL}
    # The layers behind have other numbers without it.
    without = trained(database, **start)
    again = trained(database, **STILL, initial_model_id=without["model_id"], options={"dropout": 0.5})
    assert tensors(database, first).keys() != tensors(database, without).keys()
    assert database.weights(again["id"]) == database.weights(first["id"])


@pytest.mark.thorough
def test_a_paused_training_resumes_from_its_checkpoint(database, start_worker, pause):
    start_worker()
    first = trained(database)
    request = {"initial_model_id": first["model_id"], "epochs": 4, "learning_rate": 0.001}
    whole = trained(database, **request)
    paused = pause.trained(14, database, "points", **request)
    assert database.weights(paused["id"]) == database.weights(whole["id"])


#: Rows, what else is asked for, and how that is refused.
DO_NOT_FIT = [
    (
        "SELECT id, a, b, id %% 2 AS label FROM points",
        {},
        "22000",
        'column "label" holds 0, but the classes that the model was trained on are of type text',
    ),
    (
        "SELECT id, a, b, label FROM points",
        {"options": {"hidden_units": [7]}},
        "22023",
        'the network cannot start from the weights of the model "m": ',
    ),
    (
        "SELECT id, CASE id WHEN 7 THEN 1e300 ELSE a::float8 END AS a, b, label FROM points",
        {"validation": 0.0},
        "22000",
        'the feature "a" of row id=7 holds NaN or a number out of range',
    ),
]


def test_rows_and_networks_that_do_not_fit_are_refused(database, start_worker):
    start_worker()
    first = trained(database, epochs=1)
    for number, (definition, request, sqlstate, message) in enumerate(DO_NOT_FIT):
        add_table(database, f"others{number}", f"CREATE TABLE others{number} AS {definition}")
        found = refused(database, f"others{number}", initial_model_id=first["model_id"], **request)
        assert (found[0], found[1].startswith(message)) == (sqlstate, True), found


def test_a_model_that_was_dropped_while_the_job_was_queued_is_named(database, start_worker):
    worker = start_worker()
    first = trained(database)
    database.let_go(worker)
    options = {"start_from": "m", "start_from_version": 1}
    job = database.submit("points", initial_model_id=first["model_id"], options=options)
    database.execute("DELETE FROM tensile.models")
    start_worker()
    row = database.wait(job)
    found = (row["error_sqlstate"], row["error_message"])
    assert found == ("42704", 'the model "m" (version 1) that the training starts from is no more')
