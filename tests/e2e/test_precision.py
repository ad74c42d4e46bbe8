"""`precision` and `memory_format` from a client's SELECT to weights, predictions and rows, on the cpu."""

import json
from types import SimpleNamespace

import numpy as np
import psycopg
import pytest
import torch
from psycopg.rows import dict_row
from torch.nn import functional

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.state import model_state
from tensile_db.data.dataset import Features, TrainingSet
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.data.features import normalised
from tensile_db.data.split import split
from tensile_db.worker.jobs.scores import score_for
from tests.patience import wait_until

ROWS, BATCH, EPOCHS, SEED, SHARE = 64, 16, 2, 3, 0.25
RATE = 0.01

#: Pixels of each row, (channels, height, width), and its class.
PIXELS = np.random.default_rng(1).integers(0, 256, (ROWS, 3, 32, 32), np.uint8)
CLASSES = np.arange(ROWS) % 2

OPTIONS = {"raw_shape": [3, 32, 32], "image_size": 32}

TRAIN = """
    SELECT * FROM tensile_train('test_resnet', 'raws', target => 'label', features => '{image}', model => %s,
                                epochs => %s, batch_size => %s, learning_rate => %s, validation => %s,
                                seed => %s, options => %s)
"""


def wait_until_known(database, architecture):
    known = "SELECT 1 FROM tensile.architectures WHERE name = %s"
    wait_until(lambda: database.execute(known, architecture))


@pytest.fixture
def client(database, start_worker):
    """Connected as anna, who has a table of images and a worker that computes with one thread."""
    database.execute("CREATE TABLE raws (id int PRIMARY KEY, image bytea, label int)")
    with psycopg.connect(database.admin) as connection, connection.cursor() as cursor:
        rows = [(i, PIXELS[i].tobytes(), int(CLASSES[i])) for i in range(ROWS)]
        cursor.executemany("INSERT INTO raws VALUES (%s, %s, %s)", rows)
    database.execute("ALTER TABLE raws OWNER TO anna")
    start_worker()
    wait_until_known(database, "test_resnet")
    with database.connect(row_factory=dict_row) as connection:
        yield connection


def train(client, precision):
    return train_with(
        client, precision or "default", **({} if precision is None else {"precision": precision})
    )


def train_with(client, model, **options):
    arguments = (model, EPOCHS, BATCH, RATE, SHARE, SEED, json.dumps(OPTIONS | options))
    return client.execute(TRAIN, arguments).fetchone()


def rows_of(database, job):
    """Return a job's features by the statistics that it has kept with its model, and its batches."""
    (model,) = database.execute("SELECT features FROM tensile.models WHERE job_id = %s", job)
    spec = FeatureSpec.from_json({k: v for k, v in model["features"].items() if k != "options"})
    features = Features(values=PIXELS, spec=spec)
    training, held_out = split(ROWS, SHARE, SEED, CLASSES)
    batches = TrainingSet(
        features,
        CLASSES,
        training_rows=training,
        validation_rows=held_out,
        batch_size=BATCH,
        seed=SEED,
    )
    return features, batches


#: What autocast casts to, by what the option may be.
CASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(options):
    dtype = CASTS.get(options.get("precision"))
    return torch.autocast("cpu", dtype=dtype, enabled=dtype is not None)


def train_eagerly(rows, spec, options):
    """Train by plain eager PyTorch as the options say; return the network, in evaluation mode."""
    model = build("test_resnet", num_outputs=2, input_shape=(3, 32, 32), seed=SEED, options={}).train()
    if options.get("memory_format") == "channels_last":
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, foreach=False)
    scaler = torch.amp.GradScaler("cpu", enabled=options.get("precision") == "fp16")
    batches = rows.training(1)
    for _ in range(EPOCHS * rows.batches_per_epoch):
        pixels, target, _ = next(batches)
        features, target = torch.from_numpy(normalised(pixels, spec)), torch.from_numpy(target)
        optimizer.zero_grad()
        with autocast(options):
            loss = functional.cross_entropy(model(features), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    batches.close()
    return model.eval()


def outputs_of(model, features, options):
    with torch.no_grad(), autocast(options):
        return model(torch.from_numpy(features)).float()


def bytes_of(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def stored(database, job):
    """Return the bytes of a job's weights by name, and the types in which they are stored."""
    whole = {}
    for (name, _), data in sorted(database.weights(job).items()):
        whole[name] = whole.get(name, b"") + data
    dtypes = database.execute(
        "SELECT DISTINCT dtype FROM tensile.model_weights"
        " WHERE model_id = (SELECT id FROM tensile.models WHERE job_id = %s)",
        job,
    )
    return whole, {row["dtype"] for row in dtypes}


def types_of_activations(database, job):
    """Return the dtypes of what the planned steps of a job made."""
    rows = database.execute(
        "SELECT DISTINCT t.dtype FROM tensile.plans p"
        " JOIN tensile.graph_tensors t ON t.digest = p.graph_digest"
        " WHERE p.job_id = %s AND t.role = 'activation'",
        job,
    )
    return {row["dtype"] for row in rows}


@pytest.mark.parametrize(
    "options",
    [
        # Each alone is in the next.
        pytest.param({"precision": "bf16"}, marks=pytest.mark.thorough),
        pytest.param({"memory_format": "channels_last"}, marks=pytest.mark.thorough),
        {"precision": "bf16", "memory_format": "channels_last"},
        pytest.param({"precision": "fp16"}, marks=pytest.mark.thorough),
    ],
    ids=lambda options: " ".join(options.values()),
)
def test_a_training_gives_the_bits_of_eager_pytorch_and_is_used_as_it_was_trained(
    database, client, one_thread, options
):
    trained = train_with(client, "own", **options)
    job = trained["job_id"]
    features, rows = rows_of(database, job)
    model = train_eagerly(rows, features.spec, options)

    weights, dtypes = stored(database, job)
    assert weights == {name: bytes_of(value) for name, value in model_state(model).items()}
    assert dtypes <= {"float32", "int64"}

    score = score_for(None)
    for (pixels, _), target in rows.validation(BATCH):
        score.add(outputs_of(model, normalised(pixels, features.spec), options)[: len(target)], target)
    validated = {name: trained["metrics"][f"validation_{name}"] for name in score.values()}
    assert validated == score.values()

    everything = features.normalised(np.arange(ROWS))
    want = outputs_of(model, everything, options).double().softmax(dim=1).max(dim=1)
    predicted = client.execute("SELECT * FROM tensile_predict('own', 'raws')").fetchall()
    assert [row["row_key"] for row in predicted] == [str(i) for i in range(ROWS)]
    assert [row["probability"] for row in predicted] == want.values.tolist()

    # Rows served together are padded to other batches, whose products may be added up in another order.
    one = client.execute(
        "SELECT tensile_probabilities('own', image) AS told FROM raws WHERE id = 5"
    ).fetchone()["told"]
    assert max(one.values()) == pytest.approx(want.values[5].item(), abs=0.02)
    kinds = database.execute("SELECT id, kind FROM tensile.jobs WHERE kind IN ('train', 'predict', 'serve')")
    assert {row["kind"] for row in kinds} == {"train", "predict", "serve"}
    casts_to = str(CASTS.get(options.get("precision"))).removeprefix("torch.")
    for row in kinds if "precision" in options else ():
        # A row may be answered before the plan that it was answered by is in the catalog.
        wait_until(lambda job=row["id"]: casts_to in types_of_activations(database, job))


@pytest.mark.thorough
def test_bfloat16_takes_less_memory_than_float32_and_float32_is_the_default(database, client):
    jobs = {name: train(client, name)["job_id"] for name in (None, "float32", "tf32", "bfloat16")}
    rows = {name: SimpleNamespace(**database.job(job)) for name, job in jobs.items()}
    full, half = rows["float32"], rows["bfloat16"]
    assert half.vanilla_peak_nbytes < 0.9 * full.vanilla_peak_nbytes
    assert half.measured_peak_nbytes < 0.9 * full.measured_peak_nbytes
    weights = {name: database.weights(job) for name, job in jobs.items()}
    assert weights[None] == weights["float32"] != weights["bfloat16"]
    # TF32 is a permission, of which the processor makes no use.
    assert weights["tf32"] == weights["float32"]
    assert "bfloat16" not in types_of_activations(database, jobs["float32"])


def test_a_search_may_try_precisions(database, client):
    space = {"precision": {"choices": ["float32", "bf16"]}}
    arguments = (json.dumps(space), json.dumps(OPTIONS))
    found = client.execute(
        "SELECT * FROM tensile_search('test_resnet', 'raws', %s, method => 'grid', target => 'label',"
        " features => '{image}', epochs => 1, batch_size => 16, validation => 0.25, options => %s)",
        arguments,
    ).fetchone()
    assert found["params"]["precision"] in ("float32", "bf16")
    trials = database.execute("SELECT job_id, params FROM tensile.trials ORDER BY trial")
    seen = [(row["params"]["precision"], types_of_activations(database, row["job_id"])) for row in trials]
    assert [(name, "bfloat16" in dtypes) for name, dtypes in seen] == [("float32", False), ("bf16", True)]


@pytest.mark.thorough
def test_jobs_in_both_precisions_at_once_get_the_bits_of_each_alone(database, client):
    alone = {name: database.weights(train(client, name)["job_id"]) for name in ("float32", "bfloat16")}
    submit = TRAIN.replace("* FROM tensile_train", "tensile_submit").replace("%s)\n", "%s) AS job\n")
    jobs = {}
    with client.transaction():
        for name in (*alone, *alone):
            options = json.dumps(OPTIONS | {"precision": name})
            arguments = (name, EPOCHS, BATCH, RATE, SHARE, SEED, options)
            jobs[client.execute(submit, arguments).fetchone()["job"]] = name
    assert {database.wait(job)["state"] for job in jobs} == {"succeeded"}
    for job, name in jobs.items():
        assert database.weights(job) == alone[name]
