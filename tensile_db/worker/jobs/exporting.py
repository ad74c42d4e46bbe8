"""A model's weights in a file, as other programs read them."""

import json
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save_file

from tensile_db.catalog.models import ModelRow
from tensile_db.catalog.tensors import StoredTensor
from tensile_db.worker.jobs import checkpoints


def write_file(file: Path, model: ModelRow, stored: Iterable[StoredTensor]) -> int:
    """Write a model's weights as safetensors, named as PyTorch names them; return their bytes.

    The metadata have, each as JSON, the model's architecture, task, classes, target_scaling and features.
    Raises OSError.
    """
    tensors = {
        # parameter/... and buffer/... are two kinds of names that no network has twice.
        name.partition("/")[2]: tensor
        for name, tensor in checkpoints.from_stored(stored).items()
    }
    described = {
        "architecture": model.architecture,
        "task": model.task,
        "classes": model.classes,
        "target_scaling": model.target_scaling,
        "features": model.features,
    }
    save_file(tensors, file, metadata={key: json.dumps(value) for key, value in described.items()})
    return sum(tensor.nbytes for tensor in tensors.values())
