"""A model's weights in a file, as other programs read them."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save

from tensile_db.capture.networks import architectures
from tensile_db.catalog.models import ModelRow
from tensile_db.catalog.tensors import StoredTensor
from tensile_db.worker.jobs import checkpoints
from tensile_db.worker.jobs.capturing import own_options
from tensile_db.worker.jobs.model_use import is_no_more, spec_of


def write_file(file: Path, model: ModelRow, stored: Iterable[StoredTensor]) -> int:
    """Write a model's weights as safetensors, as the state dict of its network; return their bytes.

    The metadata have, each as JSON, the model's architecture, task, classes, target_scaling and features.
    What is there in a file of that name stays until all is written.
    Raises UndefinedModel where the model has been dropped meanwhile, OSError.
    """
    kept = checkpoints.from_stored(stored)
    if not kept:
        raise is_no_more(f'"{model.name}"')
    tensors: dict[str, torch.Tensor] = {}
    seen: set[str] = set()
    for name, place in (_state_dict_of(model) or _names_of(kept)).items():
        # One that layers share is there for each of them, and safetensors wants these apart.
        tensors[name] = kept[place].clone() if place in seen else kept[place]
        seen.add(place)
    described = {
        "architecture": model.architecture,
        "task": model.task,
        "classes": model.classes,
        "target_scaling": model.target_scaling,
        "features": model.features,
    }
    metadata = {key: json.dumps(value) for key, value in described.items()}
    data = save(tensors, metadata=metadata)
    # Not safetensors' own save_file, which puts a file in the place of a link, a pipe or a device.
    meant = Path(os.path.realpath(file))
    if meant.exists() and not meant.is_file():
        meant.write_bytes(data)
    else:
        _replace(meant, data)
    return sum(tensor.nbytes for tensor in tensors.values())


def _state_dict_of(model: ModelRow) -> Mapping[str, str] | None:
    """Return the names in a network's state dict, with those of its tensors in the catalog.

    Buffers that are not persistent are not in there, and a weight that layers share is several times.
    None where nobody knows, as of a package's.
    """
    network = architectures.build_empty(
        model.architecture,
        num_outputs=1 if model.classes is None else len(model.classes),
        input_shape=spec_of(model).input_shape,
        options=own_options(model.architecture, model.features.get("options") or {}),
    )
    if network is None:
        return None
    own = {id(tensor): f"parameter/{name}" for name, tensor in network.named_parameters()}
    own |= {id(tensor): f"buffer/{name}" for name, tensor in network.named_buffers()}
    return {name: own[id(tensor)] for name, tensor in network.state_dict(keep_vars=True).items()}


def _names_of(kept: Iterable[str]) -> Mapping[str, str]:
    """Return PyTorch's names for those in the catalog."""
    return {place.partition("/")[2]: place for place in kept}


def _replace(file: Path, data: bytes) -> None:
    """Put a file in the place of what is there, and with its rights."""
    # Its own, for another one may write there, too.
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        if file.exists():
            shutil.copymode(file, part)
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
