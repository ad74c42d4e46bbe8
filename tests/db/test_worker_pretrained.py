"""A real worker trains from pretrained weights, which the command line has brought."""

import io
import json
from pathlib import Path

import numpy as np
import psycopg
import pytest
import timm
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional
from typer.testing import CliRunner

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.state import model_state
from tensile_db.cli import app
from tensile_db.data.split import shuffled, split

#: So small a step that no weight changes.
STILL = {"optimizer": "sgd", "learning_rate": 1e-40}
REQUEST = {"architecture": "test_resnet", "features": ["image"], "batch_size": 8, "epochs": 1}
SIDE = 32


@pytest.fixture
def run():
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    return lambda *arguments: runner.invoke(app, [str(argument) for argument in arguments])


def png(seed, mode="RGB"):
    shape = (SIDE, SIDE, 3) if mode == "RGB" else (SIDE, SIDE)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue(), pixels


def add_photos(database, name="photos", mode="RGB", rows=24):
    """Make a table of PNGs of three classes; return their pixels, in order."""
    files = [png(seed, mode) for seed in range(rows)]
    database.execute(f"CREATE TABLE {name} (id integer PRIMARY KEY, label integer, image bytea)")
    with psycopg.connect(database.admin) as connection:
        connection.cursor().executemany(
            f"INSERT INTO {name} VALUES (%s, %s, %s)",
            [(number, number % 3, file) for number, (file, _) in enumerate(files)],
        )
    database.execute(f"ALTER TABLE {name} OWNER TO anna")
    return np.stack([pixels for _, pixels in files])


def bring(run, database, tmp_path, name="test_resnet", *options, seed=7):
    """Save a network of ten classes and import it; return it and the weights' id."""
    torch.manual_seed(seed)
    network = timm.create_model(name, num_classes=10)
    for parameter in network.parameters():
        # None is 0, to which the smallest step would tell.
        torch.nn.init.uniform_(parameter, 0.01, 0.1)
    save_file(network.state_dict(), tmp_path / "w.safetensors")
    arguments = (name, tmp_path / "w.safetensors", "--dsn", database.admin, *options)
    result = run("import-weights", *arguments)
    assert result.exit_code == 0, result.output
    (row,) = database.execute("SELECT id FROM tensile.pretrained_weights ORDER BY id DESC LIMIT 1")
    return network, row["id"]


def trained(database, source="photos", **request):
    row = database.wait(database.submit(source, **REQUEST | request))
    assert row["state"] == "succeeded", row["error_message"]
    return row


def model_of(database, job):
    (model,) = database.execute("SELECT * FROM tensile.models WHERE job_id = %s", job["id"])
    return model


def notices(database, job):
    rows = database.execute(
        "SELECT detail ->> 'message' AS said FROM tensile.job_events WHERE job_id = %s AND kind = 'notice'",
        job["id"],
    )
    return [row["said"] for row in rows]


def test_a_training_starts_from_them_and_learns_its_own_classes(run, database, start_worker, tmp_path):
    add_photos(database)
    network, weights = bring(run, database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    job = trained(database, pretrained_id=weights, options={"pretrained": "test_resnet"}, **STILL)
    kept = database.weights(job["id"])
    for name, value in network.named_parameters():
        if name.startswith("fc."):
            assert len(kept[f"parameter/{name}", 0]) == value.nbytes * 3 // 10
        else:
            assert kept[f"parameter/{name}", 0] == value.detach().numpy().tobytes(), name
    model = model_of(database, job)
    assert (model["name"], model["classes"]) == ("m", [0, 1, 2])
    # timm's for this network: half of white.
    features = model["features"]
    assert (features["mean"], features["scale"], features["size"]) == ([127.5] * 3, [127.5] * 3, [SIDE, SIDE])
    assert features["options"]["pretrained"] == "test_resnet"
    assert notices(database, job) == []


@pytest.mark.parametrize("is_frozen", [False, True])
def test_weights_are_eager_pytorchs_bits(run, database, start_worker, tmp_path, one_thread, is_frozen):
    pixels = add_photos(database)
    pretrained, weights = bring(run, database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    request = {"epochs": 3, "seed": 5, "optimizer": "momentum", "learning_rate": 0.01}
    job = trained(database, pretrained_id=weights, **request, options={"freeze_backbone": is_frozen})
    codes = np.arange(len(pixels)) % 3
    training, _ = split(len(codes), 0.25, 5, codes)
    network = build("test_resnet", num_outputs=3, input_shape=(3, SIDE, SIDE), seed=5).train()
    state = {name: value for name, value in pretrained.state_dict().items() if not name.startswith("fc.")}
    assert network.load_state_dict(state, strict=False).missing_keys == ["fc.weight", "fc.bias"]
    if is_frozen:
        # Batch norm's statistics, too.
        network.eval().requires_grad_(False)
        network.fc.requires_grad_()
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))
    mean = scale = torch.full((1, 3, 1, 1), 127.5)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, foreach=False)
    for epoch in range(3):
        order = shuffled(training, 5, epoch)
        for first in range(0, len(order) // 8 * 8, 8):
            rows = order[first : first + 8]
            optimizer.zero_grad()
            found = network((images[rows] - mean) / scale)
            functional.cross_entropy(found, torch.from_numpy(codes[rows])).backward()
            optimizer.step()
    kept = database.weights(job["id"])
    for name, value in model_state(network).items():
        assert kept[name, 0] == value.numpy().tobytes(), name


def test_of_a_frozen_backbone_nothing_is_kept_for_a_backward_pass(run, database, start_worker, tmp_path):
    add_photos(database)
    _, weights = bring(run, database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    peaks = []
    for is_frozen in (False, True):
        options = {"freeze_backbone": is_frozen, "precision": "float32"}
        job = trained(
            database, pretrained_id=weights, kind="explain", optimizer="adam", batch_size=16, options=options
        )
        rows = {row["property"]: row["value"] for row in job["result"]["rows"]}
        peaks.append(int(rows["vanilla_peak"]))
    assert peaks[1] < 0.5 * peaks[0]


def test_a_model_goes_on_with_its_backbone_frozen(database, start_worker):
    start_worker()
    first = trained(database, "points", architecture="mlp", features=["a", "b"])
    options = {"freeze_backbone": True, "start_from": "m", "max_gradient_norm": 0.1}
    request = {"architecture": "mlp", "features": ["a", "b"], "optimizer": "adam", "options": options}
    second = trained(database, "points", initial_model_id=first["model_id"], **request)
    before, after = database.weights(first["id"]), database.weights(second["id"])
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {("parameter/5.weight", 0), ("parameter/5.bias", 0)}


def test_grey_images_are_standardised_as_the_mean_of_the_colours(run, database, start_worker, tmp_path):
    add_photos(database, "grey", mode="L")
    _, weights = bring(run, database, tmp_path, "test_efficientnet", "--image-size", SIDE)
    start_worker()
    job = trained(database, "grey", pretrained_id=weights, architecture="test_efficientnet")
    features = model_of(database, job)["features"]
    assert features["mean"] == pytest.approx([255 * (0.485 + 0.456 + 0.406) / 3])
    assert features["scale"] == pytest.approx([255 * (0.229 + 0.224 + 0.225) / 3])


def test_arrays_of_numbers_are_standardised_by_their_own(run, database, start_worker, tmp_path):
    _, weights = bring(run, database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    (job, anew) = (trained(database, "pictures", pretrained_id=each) for each in (weights, None))
    statistics = [
        (model["features"]["mean"], model["features"]["scale"])
        for model in (model_of(database, job), model_of(database, anew))
    ]
    assert statistics[0] == statistics[1]


def test_images_are_made_as_large_as_the_weights_want_them(run, database, start_worker, tmp_path):
    add_photos(database)
    _, weights = bring(run, database, tmp_path)
    start_worker(memory_nbytes=2**30)
    job = trained(database, pretrained_id=weights)
    assert model_of(database, job)["features"]["size"] == [160, 160]
    (said,) = notices(database, job)
    assert said.startswith("images of 32 x 32 are made 160 x 160, which the pretrained weights")
    smaller = trained(database, pretrained_id=weights, options={"image_size": 48})
    assert model_of(database, smaller)["features"]["size"] == [48, 48]
    assert notices(database, smaller) == []


def test_positions_of_another_size_are_refused(run, database, start_worker, tmp_path):
    add_photos(database)
    _, weights = bring(run, database, tmp_path, "test_vit", "--image-size", SIDE, "--name", "patches")
    vit = REQUEST | {"architecture": "test_vit", "pretrained_id": weights}
    start_worker()
    assert database.wait(database.submit("photos", **vit))["state"] == "succeeded"
    for kind in ("train", "explain"):
        row = database.wait(database.submit("photos", kind=kind, **vit, options={"image_size": 48}))
        assert row["error_sqlstate"] == "22023"
        assert row["error_message"] == (
            'the network cannot start from the pretrained weights "patches": parameter/pos_embed is'
            " [1, 5, 64], and [1, 10, 64] in the network"
        )
        assert "they are made for images of 32 x 32" in row["error_hint"]


@pytest.mark.parametrize("is_paused", [False, True])
def test_weights_that_are_replaced_before_a_training_goes_on_are_named(
    run, database, start_worker, tmp_path, pause, is_paused
):
    add_photos(database)
    _, weights = bring(run, database, tmp_path, "test_resnet", "--image-size", SIDE)
    request = REQUEST | {"pretrained_id": weights, "options": {"pretrained": "test_resnet"}, "epochs": 3}
    if is_paused:
        start_worker()
        job = pause.before(3, database, "photos", **request)
    else:
        job = database.submit("photos", **request)
    bring(run, database, tmp_path, "test_resnet", "--replace")
    if is_paused:
        database.execute("UPDATE tensile.jobs SET pause_requested = false WHERE id = %s", job)
    else:
        start_worker()
    row = database.wait(job)
    assert (row["error_sqlstate"], row["error_message"]) == (
        "42704",
        'the pretrained weights "test_resnet" have been deleted or replaced since the training was submitted',
    )


def test_a_paused_training_resumes_from_its_checkpoint(run, database, start_worker, tmp_path, pause):
    add_photos(database)
    _, weights = bring(run, database, tmp_path, "test_resnet", "--image-size", SIDE)
    start_worker()
    request = REQUEST | {"pretrained_id": weights, "epochs": 4, "learning_rate": 0.001}
    whole = trained(database, **request)
    paused = pause.trained(4, database, "photos", **request)
    assert database.weights(paused["id"]) == database.weights(whole["id"])


def test_a_name_is_taken_once_unless_it_is_replaced(run, database, tmp_path):
    _, first = bring(run, database, tmp_path)
    file = tmp_path / "w.safetensors"
    result = run("import-weights", "test_resnet", file, "--dsn", database.admin)
    assert result.exit_code == 1
    assert 'ERROR:  pretrained weights "test_resnet" are there already' in result.stderr
    assert "--replace" in result.stderr
    network, second = bring(run, database, tmp_path, "test_resnet", "--replace", seed=8)
    assert second > first
    rows = database.execute("SELECT DISTINCT weights_id FROM tensile.pretrained_tensors")
    assert [row["weights_id"] for row in rows] == [second]
    (row,) = database.execute(
        "SELECT data FROM tensile.pretrained_tensors WHERE name = 'parameter/conv1.0.weight'"
    )
    assert bytes(row["data"]) == network.conv1[0].weight.detach().numpy().tobytes()


def test_who_is_no_administrator_imports_nothing(run, database, tmp_path):
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    dsn = psycopg.conninfo.make_conninfo(database.admin, user="anna")
    result = run("import-weights", "test_resnet", tmp_path / "w.safetensors", "--dsn", dsn)
    assert result.exit_code == 1
    assert "permission denied for table pretrained_weights" in result.stderr
    assert database.execute("SELECT id FROM tensile.pretrained_weights") == []


@pytest.mark.parametrize("name", ["", "  ", "x" * 201])
def test_names_that_cannot_be_are_refused(run, database, tmp_path, name):
    result = run("import-weights", "test_resnet", tmp_path / "w", "--dsn", database.admin, "--name", name)
    assert result.exit_code == 1
    assert "pretrained weights cannot be called" in result.stderr


def test_a_model_that_is_exported_is_what_others_start_from(run, database, start_worker, tmp_path):
    add_photos(database)
    start_worker()
    first = trained(database, options={"image_size": SIDE})
    file = tmp_path / "m.safetensors"
    result = run("export-weights", "m", file, "--dsn", database.admin)
    assert result.exit_code == 0, result.output
    assert f'model "m", version 1: 1.4 MiB in {file}' in result.stdout
    kept, state = database.weights(first["id"]), load_file(file)
    network = timm.create_model("test_resnet", num_classes=3)
    network.load_state_dict(state)
    for name, value in network.named_parameters():
        assert kept[f"parameter/{name}", 0] == value.detach().numpy().tobytes(), name
    with safe_open(file, "pt") as opened:
        described = {name: json.loads(value) for name, value in opened.metadata().items()}
    model = model_of(database, first)
    assert described == {
        name: model[name] for name in ("architecture", "task", "classes", "target_scaling", "features")
    }
    result = run("import-weights", "test_resnet", file, "--dsn", database.admin)
    assert result.exit_code == 0, result.output
    (row,) = database.execute("SELECT id FROM tensile.pretrained_weights")
    second = trained(database, pretrained_id=row["id"], **STILL)
    # Pixels mean what they did.
    features = model_of(database, second)["features"]
    assert all(features[name] == model["features"][name] for name in ("size", "mean", "scale"))
    again = database.weights(second["id"])
    same = [name for name, _ in network.named_parameters() if not name.startswith("fc.")]
    assert all(again[f"parameter/{name}", 0] == kept[f"parameter/{name}", 0] for name in same)


def test_models_that_cannot_be_exported_are_named(run, database, start_worker, tmp_path):
    for owner in ("anna", "worker_login"):
        for version in (1, 2):
            database.execute(
                "INSERT INTO tensile.models (name, version, owned_by, owner, architecture, task, features,"
                " parameter_nbytes) SELECT 'm', %s, oid, rolname, 'mlp', 'regression', '{}', 4 FROM pg_roles"
                " WHERE rolname = %s",
                version,
                owner,
            )
    file = tmp_path / "m.safetensors"
    theirs = psycopg.conninfo.make_conninfo(database.admin, user="anna")
    for arguments, message in (
        (("n", file, "--dsn", theirs), 'no model "n"'),
        (("m", file, "--dsn", theirs, "--version", 3), 'model "m" has no version 3'),
        (("m", file, "--dsn", database.admin), 'several owners have a model "m": anna, worker_login'),
        (("m", tmp_path / "no" / "m", "--dsn", theirs), "there is no folder"),
    ):
        result = run("export-weights", *arguments)
        assert result.exit_code == 1
        assert message in result.stderr
        assert not file.exists()


def test_an_export_leaves_what_is_there_until_it_is_whole(run, database, start_worker, tmp_path):
    start_worker()
    trained(database, "points", architecture="mlp", features=["a", "b"])
    file, link = tmp_path / "there.safetensors", tmp_path / "link"
    file.write_bytes(b"what was there")
    link.symlink_to(file)
    database.execute("DELETE FROM tensile.model_weights")
    result = run("export-weights", "m", link, "--dsn", database.admin)
    assert result.exit_code == 1
    assert 'the model "m" is no more' in result.stderr
    assert file.read_bytes() == b"what was there"
    trained(database, "points", architecture="mlp", features=["a", "b"])
    assert run("export-weights", "m", link, "--dsn", database.admin).exit_code == 0
    assert link.is_symlink()
    assert "5.weight" in load_file(file)
    assert sorted(path.name for path in tmp_path.glob("*there*")) == ["there.safetensors"]


def test_where_there_is_no_room_an_export_says_so(run, database, start_worker):
    start_worker()
    trained(database, "points", architecture="mlp", features=["a", "b"])
    result = run("export-weights", "m", "/dev/full", "--dsn", database.admin)
    assert result.exit_code == 1
    assert "ERROR:  cannot write to /dev/full: No space left on device" in result.stderr
    assert Path("/dev/full").is_char_device()


def test_a_renamed_owner_is_one_owner(run, database, tmp_path):
    for version, name in ((1, "anne"), (2, "anna")):
        database.execute(
            "INSERT INTO tensile.models (name, version, owned_by, owner, architecture, task, features,"
            " parameter_nbytes) SELECT 'm', %s, oid, %s, 'mlp', 'regression', '{}', 4 FROM pg_roles"
            " WHERE rolname = 'anna'",
            version,
            name,
        )
    result = run("export-weights", "m", tmp_path / "m", "--dsn", database.admin)
    # There are no weights, but it is clear whose they would be.
    assert 'the model "m" is no more' in result.stderr
    result = run("export-weights", "mm", tmp_path / "m", "--dsn", database.admin)
    assert 'Did you mean "m"?' in result.stderr
