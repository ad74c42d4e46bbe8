"""The way to PyTorch that docs/sql/models.md shows."""

import re
from pathlib import Path

import psycopg
import timm
import torch

DOCS = Path(__file__).parents[3] / "docs" / "sql" / "models.md"
MODEL = {"architecture": "test_resnet", "features": ["image"], "batch_size": 8, "model": "test_resnet"}


def test_the_recipe_of_the_documentation_loads_every_weight(database, start_worker):
    start_worker()
    job = database.submit("pictures", epochs=1, **MODEL)
    assert database.wait(job)["state"] == "succeeded"
    recipe = re.search(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)[1]
    assert recipe.count('"resnet18"') == 2
    recipe = recipe.replace("connect()", f"connect({database.admin!r})").replace("resnet18", "test_resnet")
    names = {"psycopg": psycopg, "timm": timm, "torch": torch}
    exec(recipe.replace("num_classes=10", "num_classes=2"), names)
    loaded = names["network"].state_dict()
    assert loaded.keys() == names["state"].keys()
    stored = database.weights(job)
    for name, weight in names["network"].named_parameters():
        assert weight.detach().numpy().tobytes() == stored[f"parameter/{name}", 0]
    assert int(loaded["bn1.num_batches_tracked"]) > 0
