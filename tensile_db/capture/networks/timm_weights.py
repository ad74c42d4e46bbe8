"""Weights in files, as timm and torchvision publish them, in timm's networks.

timm knows whose names are which, torchvision's too, and fits positions to images of another size.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import timm
import torch
from timm.models import load_state_dict
from torch import nn

from tensile_db.capture.networks import architectures
from tensile_db.capture.state import model_state
from tensile_db.errors import InvalidRequest, UnknownName

#: Of a pixel.
_WHITE = 255.0
#: Characters of timm's reasons, which may name every tensor.
_LONGEST_TOLD = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedWeights:
    """A network's weights, without those that give its outputs."""

    #: timm's name of the network.
    architecture: str
    #: (height, width) of the images that they are made for.
    size: tuple[int, int]
    #: Of each channel: pixels of 0 to 255 become (value - mean) / scale.
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    #: Parameters and buffers by name (capture/state.py), on the host.
    state: Mapping[str, torch.Tensor]


def load(
    file: Path, name: str, *, image_size: int | None = None, num_outputs: int | None = None
) -> PretrainedWeights:
    """Return the weights in a file, .safetensors or what torch.save has made of a state dict.

    name: of the network, as `architectures.resolve` knows it; behind a dot may stand timm's tag of the
    weights, which decides how pixels are standardised: "vit_base_patch16_224.augreg_in21k".
    image_size: of the images that they are to be made for, in pixels; None: of those that they were learned
    from.  num_outputs: that the file's network has; None: what the file or timm tells.
    Only tensors are read: whatever else a file would have run is refused.
    Raises UnknownName for the network or its tag; InvalidRequest where the file cannot be read, or has the
    weights of another network.
    """
    alias, _, tag = name.partition(".")
    architecture = architectures.resolve(alias)
    if not architecture.takes_images:
        raise InvalidRequest(
            f'the architecture "{alias}" has no pretrained weights',
            hint="Weights are imported for timm's networks.",
        )
    base = architecture.resolves_to
    config = _config(base, tag)
    kept = _read(file)
    if num_outputs is None:
        num_outputs = _outputs_of(kept, config)
    channels, *native = config.input_size
    size = tuple(native) if image_size is None else (image_size, image_size)
    network = _filled(
        f"{base}.{tag}" if tag else base,
        file,
        num_outputs,
        {
            "state_dict": kept,
            "source": "",
            # Of files that are no state dicts.
            "custom_load": False,
            "num_classes": num_outputs,
            # Some have a first output that stands for no class; it goes with the others.
            "label_offset": 0,
        },
        {"img_size": size} if config.fixed_input_size and size != tuple(native) else {},
    )
    of_outputs = _of_outputs(base, (channels, *size), num_outputs)
    state = {name: tensor for name, tensor in model_state(network).items() if name not in of_outputs}
    for tensor_name, tensor in state.items():
        if not tensor.isfinite().all():
            raise InvalidRequest(
                f"{file}: {tensor_name.partition('/')[2]} has numbers that are not finite",
                hint="Nothing can be learned from there: take another file.",
            )
    return PretrainedWeights(
        architecture=base,
        size=(size[0], size[1]),
        mean=tuple(_WHITE * value for value in config.mean),
        scale=tuple(_WHITE * value for value in config.std),
        state=state,
    )


def _config(base: str, tag: str) -> Any:
    """Return what timm knows of weights: images' size, mean and deviation, the classifier's name."""
    known = [each.partition(".")[2] for each in timm.list_models(f"{base}.*", pretrained=True)]
    if tag and tag not in known:
        raise UnknownName("tag", tag, known, listed_in=f"listed by timm.list_pretrained('{base}.*')")
    config = timm.get_pretrained_cfg(f"{base}.{tag}" if tag else base)
    if config is None:
        raise InvalidRequest(
            f'timm does not say how images are made for pretrained weights of "{base}"',
            hint="Use another architecture.",
        )
    return config


def _read(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors in a file by name.  Raises InvalidRequest."""
    try:
        file.open("rb").close()
        kept: dict[str, torch.Tensor] = load_state_dict(str(file))
    except OSError as error:
        raise InvalidRequest(
            f"cannot read {file}: {error.strerror or error}", hint="Name a file that you may read."
        ) from error
    except Exception as error:  # of a broken file torch and safetensors raise all kinds
        raise _no_weights(file, str(error) or type(error).__name__) from error
    if not kept or not all(isinstance(each, torch.Tensor) for each in kept.values()):
        raise _no_weights(file, "it holds something else than tensors by name")
    return kept


def _no_weights(file: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"{file} has no weights that can be read: {why.splitlines()[0]}",
        hint="Give a .safetensors file, or a state dict that torch.save has written.",
    )


def _outputs_of(kept: Mapping[str, torch.Tensor], config: Any) -> int:
    """Return how many outputs the network has whose weights these are."""
    classifier = config.classifier if isinstance(config.classifier, str) else ""
    weight = kept.get(f"{classifier}.weight")
    if weight is not None and weight.ndim:
        return int(weight.shape[0])
    # torchvision's have other names.
    return int(config.num_classes)


def _filled(
    name: str, file: Path, num_outputs: int, overlay: Mapping[str, Any], arguments: Mapping[str, Any]
) -> nn.Module:
    """Return timm's network with the weights; overlay: of timm's configuration.  Raises InvalidRequest."""
    try:
        with _missing() as missing:
            network: nn.Module = timm.create_model(
                name,
                pretrained=True,
                num_classes=num_outputs,
                pretrained_cfg_overlay=dict(overlay),
                **arguments,
            )
    except (AttributeError, AssertionError, LookupError, RuntimeError, TypeError, ValueError) as error:
        # The first line names the network's class.
        said = " ".join(line.strip() for line in str(error).splitlines()[1:] or [str(error)])
        raise _of_another(name, file, said) from error
    if missing:
        raise _of_another(name, file, f"it lacks {', '.join(sorted(missing))}")
    return network


@contextmanager
def _missing() -> Iterator[list[str]]:
    """Collect the names of tensors to which loading gives nothing; of some networks timm only logs them."""
    missing: list[str] = []
    load = nn.Module.load_state_dict

    def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        found = load(self, *args, **kwargs)
        missing.extend(found.missing_keys)
        return found

    with patch.object(nn.Module, "load_state_dict", watched):
        yield missing


def _of_another(name: str, file: Path, why: str) -> InvalidRequest:
    told = why if len(why) <= _LONGEST_TOLD else f"{why[:_LONGEST_TOLD]}..."
    return InvalidRequest(
        f'{file} has not the weights of a "{name}": {told}',
        hint="Name the architecture that they are of; or of how many outputs: --outputs 10, or 0.",
    )


def _of_outputs(base: str, input_shape: Sequence[int], num_outputs: int) -> frozenset[str]:
    """Return the names of a network's tensors whose shapes go by how many outputs it has."""
    if not num_outputs:
        return frozenset()
    now, then = (_shapes(base, input_shape, outputs) for outputs in (num_outputs, num_outputs + 1))
    return frozenset(name for name, shape in now.items() if then[name] != shape)


def _shapes(base: str, input_shape: Sequence[int], num_outputs: int) -> Mapping[str, torch.Size]:
    network = architectures.build_empty(base, num_outputs=num_outputs, input_shape=input_shape)
    if network is None:
        network = architectures.build(base, num_outputs=num_outputs, input_shape=input_shape, seed=0)
    return {name: tensor.shape for name, tensor in model_state(network).items()}
