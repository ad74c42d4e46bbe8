"""A model's weights in a file, as other programs read them."""

import json
import os
from collections.abc import Iterable
from pathlib import Path

from safetensors.torch import save

from tensile_db.catalog.models import ModelRow
from tensile_db.catalog.tensors import StoredTensor
from tensile_db.worker.jobs import checkpoints
from tensile_db.worker.jobs.model_use import is_no_more


def write_file(file: Path, model: ModelRow, stored: Iterable[StoredTensor]) -> int:
    """Write a model's weights as safetensors, named as PyTorch names them; return their bytes.

    The metadata have, each as JSON, the model's architecture, task, classes, target_scaling and features.
    What is there in a file of that name stays until all is written.
    Raises UndefinedModel where the model has been dropped meanwhile, OSError.
    """
    # parameter/... and buffer/... : no network has two of one name.
    tensors = {name.partition("/")[2]: each for name, each in checkpoints.from_stored(stored).items()}
    if not tensors:
        raise is_no_more(f'"{model.name}"')
    described = {
        "architecture": model.architecture,
        "task": model.task,
        "classes": model.classes,
        "target_scaling": model.target_scaling,
        "features": model.features,
    }
    data = save(tensors, metadata={key: json.dumps(value) for key, value in described.items()})
    # Not safetensors' own save_file, which puts a file in the place of a link, a pipe or a device.
    meant = Path(os.path.realpath(file))
    if meant.exists() and not meant.is_file():
        meant.write_bytes(data)
    else:
        _replace(meant, data)
    return sum(tensor.nbytes for tensor in tensors.values())


def _replace(file: Path, data: bytes) -> None:
    part = file.with_name(f"{file.name}.part")
    try:
        part.write_bytes(data)
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
