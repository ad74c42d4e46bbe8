"""Trainings from pretrained weights, which the command line has brought."""

import io

import numpy as np
import psycopg
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from tensile_db.cli import app
from tests.jobs import ended_jobs

#: So small a step that no weight changes.
STILL = {"optimizer": "sgd", "learning_rate": 1e-40}
REQUEST = {"architecture": "test_resnet", "features": ["image"], "batch_size": 8, "epochs": 1}
SIDE = 32


def run(*arguments):
    """Run the command line."""
    runner = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})
    return runner.invoke(app, [str(argument) for argument in arguments])


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


def bring(database, tmp_path, name="test_resnet", *options, seed=7):
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
    return ended_jobs.trained(database, source, **REQUEST | request)
