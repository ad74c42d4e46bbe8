"""Weights in files, as timm and torchvision publish them, in timm's networks.

timm knows whose names are which, torchvision's too, and fits positions to images of another size.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from tensile_db.capture.networks import architectures, timm_models
from tensile_db.capture.networks.freezing import output_tensors
from tensile_db.capture.networks.weight_files import exported_model, read_tensors
from tensile_db.capture.state import model_state
from tensile_db.errors import InvalidRequest, UnknownName

#: Of a pixel.
_WHITE = 255.0
#: Characters of timm's reasons, which may name every tensor.
_LONGEST_TOLD = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedWeights:
    """A network's weights, without those of the layers that give its outputs."""

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
    """Return the weights in a file (weight_files.py).

    name: of the network, as `architectures.resolve` knows it; behind a dot may stand timm's tag of the
    weights, which decides how pixels are standardised: "vit_base_patch16_224.augreg_in21k".  Of an exported
    model they are as that had them, where it has learned from pixels.
    image_size: of the images that they are to be made for, in pixels; None: of those that they were learned
    from.  num_outputs: that the file's network has; None: what the file or timm tells.
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
    kept, exported = read_tensors(file), exported_model(file)
    channels, *native = config.input_size
    size = (native[0], native[1]) if exported is None else exported.size
    if exported is None or not exported.mean:
        mean, scale = _in_pixels(config.mean), _in_pixels(config.std)
    else:
        mean, scale = exported.mean, exported.scale
    if num_outputs is None:
        num_outputs = _outputs_of(kept, config) if exported is None else exported.num_outputs
    if image_size is not None:
        size = image_size, image_size
    if not timm_models.runs_on(base, size):
        raise InvalidRequest(
            f'the architecture "{base}" cannot take images of {size[0]} x {size[1]}',
            hint=f"Leave out the images' size: they are {native[0]} x {native[1]} then.",
        )
    wider = _shapes(base, (channels, *size), num_outputs + 1)
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
    of_outputs = output_tensors(network, wider) if num_outputs else ()
    state = {name: tensor for name, tensor in model_state(network).items() if name not in of_outputs}
    _require_finite(file, state)
    return PretrainedWeights(
        architecture=base,
        size=size,
        # Grey is all colours alike.
        mean=mean * (channels if len(mean) == 1 else 1),
        scale=scale * (channels if len(scale) == 1 else 1),
        state=state,
    )


def _in_pixels(values: Sequence[float]) -> tuple[float, ...]:
    """Return shares of white as values of pixels."""
    return tuple(_WHITE * value for value in values)


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


def _outputs_of(kept: Mapping[str, torch.Tensor], config: Any) -> int:
    """Return how many outputs the network has whose weights these are."""
    classifier = config.classifier if isinstance(config.classifier, str) else ""
    weight = kept.get(f"{classifier}.weight")
    if weight is not None and weight.ndim:
        return int(weight.shape[0])
    # torchvision's have other names.
    return int(config.num_classes)


def _require_finite(file: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Refuse weights from which nothing can be learned.  Raises InvalidRequest."""
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise InvalidRequest(
                f"{file}: {name.partition('/')[2]} has numbers that are not finite",
                hint="Nothing can be learned from there: take another file.",
            )


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
    """Collect the names of tensors to which loading gives nothing.

    Of networks that it does not load strictly timm only logs them, and it keeps to itself how it finds out
    which of a file's names is which.  For the whole process: not for a worker's threads.
    """
    missing: list[str] = []
    load = nn.Module.load_state_dict

    def watched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        found = load(self, *args, **kwargs)
        missing.extend(found.missing_keys)
        return found

    nn.Module.load_state_dict = watched  # type: ignore[method-assign]
    try:
        yield missing
    finally:
        nn.Module.load_state_dict = load  # type: ignore[method-assign]


def _of_another(name: str, file: Path, why: str) -> InvalidRequest:
    told = why if len(why) <= _LONGEST_TOLD else f"{why[:_LONGEST_TOLD]}..."
    return InvalidRequest(
        f'{file} has not the weights of a "{name}": {told}',
        hint="Name the architecture that they are of, how many outputs it has, and images that it takes.",
    )


def _shapes(base: str, input_shape: Sequence[int], num_outputs: int) -> Mapping[str, Sequence[int]]:
    """Return the shapes of a network's tensors by name.  Raises InvalidRequest."""
    shapes = architectures.weight_shapes(base, num_outputs=num_outputs, input_shape=input_shape)
    if shapes is not None:
        return shapes
    network = architectures.build(base, num_outputs=num_outputs, input_shape=input_shape, seed=0)
    return {name: tensor.shape for name, tensor in model_state(network).items()}
