"""`tensile-db import-weights` and `export-weights` on a real server."""

import json
from pathlib import Path

import psycopg
import pytest
import timm
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from tensile_db.capture.networks.architectures import build
from tensile_db.capture.state import model_state
from tensile_db.catalog import models
from tensile_db.catalog.engine import make_engine
from tensile_db.data.feature_spec import FeatureSpec
from tensile_db.worker.jobs.checkpoints import to_stored
from tests.examples import one_in
from tests.jobs.ended_jobs import model_of
from tests.jobs.pretrained_jobs import SIDE, STILL, add_photos, bring, run, trained


def test_a_name_is_taken_once_unless_it_is_replaced(database, tmp_path):
    _, first = bring(database, tmp_path)
    file = tmp_path / "w.safetensors"
    result = run("import-weights", "test_resnet", file, "--dsn", database.admin)
    assert result.exit_code == 1
    assert 'ERROR:  pretrained weights "test_resnet" are there already' in result.stderr
    assert "--replace" in result.stderr
    network, second = bring(database, tmp_path, "test_resnet", "--replace", seed=8)
    assert second > first
    rows = database.execute("SELECT DISTINCT weights_id FROM tensile.pretrained_tensors")
    assert [row["weights_id"] for row in rows] == [second]
    (row,) = database.execute(
        "SELECT data FROM tensile.pretrained_tensors WHERE name = 'parameter/conv1.0.weight'"
    )
    assert bytes(row["data"]) == network.conv1[0].weight.detach().numpy().tobytes()


def test_who_is_no_administrator_imports_nothing(database, tmp_path):
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "w.safetensors")
    dsn = psycopg.conninfo.make_conninfo(database.admin, user="anna")
    result = run("import-weights", "test_resnet", tmp_path / "w.safetensors", "--dsn", dsn)
    assert result.exit_code == 1
    assert "permission denied for table pretrained_weights" in result.stderr
    assert database.execute("SELECT id FROM tensile.pretrained_weights") == []


@pytest.mark.parametrize("name", ["", "  ", "x" * 201])
def test_names_that_cannot_be_are_refused(database, tmp_path, name):
    result = run("import-weights", "test_resnet", tmp_path / "w", "--dsn", database.admin, "--name", name)
    assert result.exit_code == 1
    assert "pretrained weights cannot be called" in result.stderr


@pytest.mark.parametrize(
    "values",
    [
        "'{1, 2}', '{1}'",
        "'{}', '{}'",
        "'{1}', '{0}'",
        "'{1}', '{NaN}'",
        "'{1}', '{NULL}'",
        "'{NaN}', '{1}'",
        "'{-Infinity}', '{1}'",
    ],
)
def test_pixels_are_standardised_by_numbers(database, values):
    with pytest.raises(psycopg.errors.CheckViolation):
        database.execute(
            "INSERT INTO tensile.pretrained_weights (name, architecture, height, width, mean, scale, nbytes)"
            f" VALUES ('w', 'vgg16', 224, 224, {values}, 1)"
        )


@pytest.mark.thorough
def test_a_model_that_is_exported_is_what_others_start_from(database, start_worker, tmp_path):
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


def test_models_that_cannot_be_exported_are_named(database, start_worker, tmp_path):
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


def test_an_export_leaves_what_is_there_until_it_is_whole(database, start_worker, tmp_path):
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


def test_where_there_is_no_room_an_export_says_so(database, start_worker):
    start_worker()
    trained(database, "points", architecture="mlp", features=["a", "b"])
    result = run("export-weights", "m", "/dev/full", "--dsn", database.admin)
    assert result.exit_code == 1
    assert "ERROR:  cannot write to /dev/full: No space left on device" in result.stderr
    assert Path("/dev/full").is_char_device()


def test_a_renamed_owner_is_one_owner(database, tmp_path):
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


@pytest.mark.parametrize(
    "name", one_in(3, ["coat_lite_tiny", "eva02_tiny_patch14_224", "deit_tiny_distilled_patch16_224"])
)
def test_an_export_is_the_networks_state_dict(database, tmp_path, name):
    """Weights that layers share, buffers that are not persistent, and two heads."""
    network = build(name, num_outputs=3, input_shape=(3, 224, 224), seed=1)
    state = model_state(network)
    features = FeatureSpec(
        kind="image",
        columns=("image",),
        source_shape=(8, 8, 3),
        raw=False,
        size=(224, 224),
        channels=3,
        mean=(1.0, 2.0, 3.0),
        scale=(4.0, 5.0, 6.0),
        dtypes=("uint8",),
    )
    engine = make_engine(database.admin, application_name="test", pool_size=1)
    (owner,) = database.execute("SELECT oid FROM pg_roles WHERE rolname = 'anna'")
    with engine.begin() as conn:
        models.add(
            conn,
            name="m",
            owned_by=owner["oid"],
            owner="anna",
            job=None,
            architecture=name,
            task="classification",
            classes=["a", "b", "c"],
            target_scaling=None,
            features=features.to_json(),
            target="label",
            parameter_nbytes=1,
            metrics={},
            weights=to_stored(state),
        )
    engine.dispose()
    file = tmp_path / "m.safetensors"
    result = run("export-weights", "m", file, "--dsn", database.admin)
    assert result.exit_code == 0, result.output
    loaded, own = load_file(file), network.state_dict()
    assert loaded.keys() == own.keys()
    assert all(torch.equal(loaded[each], own[each]) for each in own)
    result = run("import-weights", name, file, "--dsn", database.admin)
    assert result.exit_code == 0, result.output
    (row,) = database.execute("SELECT * FROM tensile.pretrained_weights")
    assert (row["mean"], row["height"]) == ([1.0, 2.0, 3.0], 224)
