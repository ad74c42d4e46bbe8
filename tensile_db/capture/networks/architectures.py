"""Every architecture by its name: what it is, which images it takes, and how it is built.

    kind       what                                                          resolves to
    builtin    `mlp`, for tabular data (mlp.py)                              itself
    alias      the papers' spellings of timm's names                         timm's name
    timm       every model that timm lists, with random weights (timm_models.py)  itself
    package    what installed packages offer                                 "module:attribute"

A package offers an architecture through an entry point in the group `tensile_db.architectures`, whose name is
the architecture's.  In its pyproject.toml:

    [project.entry-points."tensile_db.architectures"]
    wide_mlp = "their_package.networks:build_wide_mlp"

The object is called as `build(num_outputs, in_channels, image_size, **options)` and returns an nn.Module that
maps float32 batches to one row of `num_outputs` numbers each: of images, where `image_size` is (height,
width), or of rows of `in_channels` features, where `image_size` is None.  It takes its parameters and buffers
from its modules' attributes each time, for a step is captured on others in their place; of
torch.utils.checkpoint, what is computed again must draw no random numbers (traceable.py).

A package cannot take a name of another kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

import torch
from torch import nn

from tensile_db.capture.networks import mlp, timm_models
from tensile_db.capture.networks.own_errors import is_function, said, top_package, where
from tensile_db.capture.networks.randomness import seeded
from tensile_db.capture.state import model_state
from tensile_db.errors import InvalidRequest, TensileError, UnknownName

ENTRY_POINT_GROUP = "tensile_db.architectures"

Kind = Literal["builtin", "alias", "timm", "package"]

#: The spellings of TENSILE, Salus, Capuchin and TSPLIT.
_ALIASES: Mapping[str, str] = {
    "densenet": "densenet121",
    "inception3": "inception_v3",
    "inception4": "inception_v4",
    "inceptionv3": "inception_v3",
    "inceptionv4": "inception_v4",
    "mobilenet": "mobilenetv2_100",
    "resnet": "resnet50",
    "vgg": "vgg16",
    "vit": "vit_base_patch16_224",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A name that a job may give."""

    name: str
    kind: Kind
    #: What the name stands for, by the table in the module's docstring.
    resolves_to: str

    @property
    def takes_images(self) -> bool:
        """Whether it refuses rows of features."""
        return self.kind in ("timm", "alias")


def resolve(name: str) -> Architecture:
    """Return the architecture called `name`; raise UnknownName, suggesting the nearest."""
    if name in mlp.NAMES:
        return Architecture(name=name, kind="builtin", resolves_to=name)
    if name in _ALIASES:
        return Architecture(name=name, kind="alias", resolves_to=_ALIASES[name])
    if timm_models.exists(name):
        return Architecture(name=name, kind="timm", resolves_to=name)
    if name in (offered := _offered()):
        return Architecture(name=name, kind="package", resolves_to=offered[name].value)
    raise UnknownName("architecture", name, [known for known, _, _ in known_names()])


def known_names() -> list[tuple[str, Kind, str]]:
    """Return every name with its kind and what it resolves to, in alphabetical order."""
    known: dict[str, tuple[Kind, str]] = {
        name: ("package", point.value) for name, point in _offered().items()
    }
    known |= {name: ("timm", name) for name in timm_models.names()}
    known |= {name: ("alias", stands_for) for name, stands_for in _ALIASES.items()}
    known |= {name: ("builtin", name) for name in mlp.NAMES}
    return [(name, kind, stands_for) for name, (kind, stands_for) in sorted(known.items())]


def build(
    name: str,
    *,
    num_outputs: int,
    input_shape: Sequence[int],
    seed: int,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build the network, its weights drawn from `seed`: equal arguments give equal bits.

    input_shape: of one row, (features,) or (channels, height, width).
    Raises UnknownName for the name or an option, InvalidRequest for a value or shape it cannot have.
    Takes DEFAULT_GENERATOR_LOCK.
    """
    architecture = resolve(name)
    options = {} if options is None else options
    if num_outputs < 1:
        raise InvalidRequest(f"a network with {num_outputs} outputs", hint="Give it one output or more.")
    if len(input_shape) not in (1, 3) or min(input_shape) < 1:
        raise InvalidRequest(
            f"rows of shape {tuple(input_shape)}",
            hint="Give numeric columns, or images of shape channels x height x width.",
        )
    if architecture.takes_images and len(input_shape) != 3:
        raise InvalidRequest(
            f'architecture "{name}" takes images, but the rows are {input_shape[0]} numbers',
            hint='Use architecture "mlp" for numeric columns.',
        )
    with seeded(seed):
        if architecture.kind == "builtin":
            return mlp.build(num_outputs=num_outputs, input_shape=input_shape, options=options)
        if architecture.kind == "package":
            return _build_offered(_offered()[name], num_outputs, input_shape, options)
        return timm_models.build(
            architecture.resolves_to, num_outputs=num_outputs, input_shape=input_shape, options=options
        )


def weights_nbytes(
    name: str,
    *,
    num_outputs: int,
    input_shape: Sequence[int],
    options: Mapping[str, Any] | None = None,
) -> int:
    """Return the bytes of a network's parameters and buffers without making it; 0 where that cannot be told.

    Arguments and errors as of `build`.
    """
    model = build_empty(name, num_outputs=num_outputs, input_shape=input_shape, options=options)
    return 0 if model is None else sum(each.nbytes for each in (*model.parameters(), *model.buffers()))


def build_empty(
    name: str,
    *,
    num_outputs: int,
    input_shape: Sequence[int],
    options: Mapping[str, Any] | None = None,
) -> nn.Module | None:
    """Build a network whose tensors have shapes alone; None where it cannot be had so, as a package's.

    Arguments and errors as of `build`.
    """
    if resolve(name).kind == "package":
        # What it does when it is built is its own affair, and so once is enough.
        return None
    try:
        with torch.device("meta"):
            return build(name, num_outputs=num_outputs, input_shape=input_shape, seed=0, options=options)
    except TensileError:
        raise
    except Exception:  # noqa: BLE001  # some may want numbers, which there are none of
        return None


def weight_shapes(
    name: str,
    *,
    num_outputs: int,
    input_shape: Sequence[int],
    options: Mapping[str, Any] | None = None,
) -> Mapping[str, tuple[int, ...]] | None:
    """Return the shapes of a network's parameters and buffers by name (capture/state.py), without making it.

    None where it cannot be had so, as a package's.  Arguments and errors as of `build`.
    """
    model = build_empty(name, num_outputs=num_outputs, input_shape=input_shape, options=options)
    if model is None:
        return None
    return {tensor: tuple(value.shape) for tensor, value in model_state(model).items()}


def default_image_size(name: str, source_size: tuple[int, int]) -> tuple[int, int]:
    """Return the (height, width) to which images of `source_size` are resized for the network.

    For timm's: the source's own size where the network can run on it, else the next larger that it can,
    at most the size it was designed for.  Other kinds take images as they are.
    """
    architecture = resolve(name)
    if architecture.takes_images:
        return timm_models.image_size(architecture.resolves_to, source_size)
    return source_size


def default_channels(name: str, source_channels: int) -> int:
    """Return the channels that images get for the network: grey becomes RGB for timm's."""
    architecture = resolve(name)
    if architecture.takes_images:
        return timm_models.channels(architecture.resolves_to)
    return source_channels


def option_names(name: str) -> tuple[str, ...] | None:
    """Return the options that the network takes; None where only the package knows."""
    architecture = resolve(name)
    if architecture.kind == "package":
        return None
    return mlp.OPTIONS if architecture.kind == "builtin" else timm_models.OPTIONS


def _offered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def package_of(name: str) -> str | None:
    """Return the topmost name of the package that offers an architecture; None where none does.

    Of `module:function`, a network of one's own, it is the module's.
    """
    if is_function(name):
        return top_package(name)
    point = _offered().get(name)
    return None if point is None else top_package(point.value)


def _build_offered(
    point: EntryPoint, num_outputs: int, input_shape: Sequence[int], options: Mapping[str, Any]
) -> nn.Module:
    image_size = (input_shape[1], input_shape[2]) if len(input_shape) == 3 else None
    # Somebody else's code: whatever it raises, SystemExit included, ends this request only.
    try:
        model = point.load()(num_outputs, input_shape[0], image_size, **options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise InvalidRequest(
            f'architecture "{point.name}" of {point.value} cannot be built: {said(error)}'
            f"{where(error, top_package(point.value))}",
            hint="Check its options and the package that offers it.",
        ) from error
    if not isinstance(model, nn.Module):
        raise InvalidRequest(
            f'architecture "{point.name}" of {point.value} gave a {type(model).__name__}, not an nn.Module',
            hint="Its entry point must name a function that returns an nn.Module.",
        )
    return model
