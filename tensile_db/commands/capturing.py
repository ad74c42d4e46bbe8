"""The training step that `tensile-db plan` plans: of an architecture, a benchmark's network, or one's own."""

from torch import nn

from tensile_db.bench.machines import torch_device
from tensile_db.bench.networks.architecture_workloads import row_shape
from tensile_db.bench.networks.captures import capture_workload
from tensile_db.bench.networks.workloads import CLASSES, WORKLOADS, Workload, workload
from tensile_db.capture import optimizers
from tensile_db.capture.networks import architectures
from tensile_db.capture.networks.freezing import freeze_backbone
from tensile_db.capture.networks.memory_format import laid_out
from tensile_db.capture.precision import precision_of
from tensile_db.capture.step import CapturedStep
from tensile_db.capture.train_step import capture_train_step
from tensile_db.commands.own_networks import use_network
from tensile_db.errors import InvalidRequest, UnknownName


def capture(
    architecture: str,
    *,
    batch_size: int,
    image_size: int | None,
    features: int | None,
    classes: int | None,
    optimizer: str,
    precision: str,
    memory_format: str,
    freeze: bool,
    device: str,
) -> CapturedStep:
    """Capture a step; None is the architecture's own.

    freeze: whether only the layer that gives the outputs is trained.
    Raises UnknownName, and InvalidRequest for what the architecture has no use for.
    """
    configured = optimizers.configure(optimizer)
    if (benched := _workload(architecture)) is not None:
        _require_none(
            architecture,
            image_size=image_size,
            features=features,
            classes=classes,
            freeze_backbone=freeze or None,
        )
        network = _laid_out(benched.module(batch_size), memory_format, architecture)
        return capture_workload(
            benched,
            network,
            batch_size,
            configured,
            torch_device(device),
            precision_of({"precision": precision}),
        )
    shape = _row_shape(architecture, image_size=image_size, features=features)
    num_outputs = CLASSES if classes is None else classes
    model = architectures.build(architecture, num_outputs=num_outputs, input_shape=shape, seed=0)
    if freeze:
        wider = architectures.weight_shapes(architecture, num_outputs=num_outputs + 1, input_shape=shape)
        freeze_backbone(model, wider, architecture=architecture)
    return capture_train_step(
        _laid_out(model, memory_format, architecture),
        batch_shape=(batch_size, *shape),
        target="classes",
        optimizer=configured,
        device=torch_device(device),
        precision=precision_of({"precision": precision}),
        num_outputs=num_outputs,
        architecture=architecture,
        is_frozen=freeze,
    )


def _row_shape(architecture: str, *, image_size: int | None, features: int | None) -> tuple[int, ...]:
    """Return the shape of one row; raise InvalidRequest for a size that the architecture has no use for."""
    resolved = architectures.resolve(architecture)
    # A package's is of images where their size is given, for it alone knows what it takes.
    takes_images = resolved.takes_images or (resolved.kind == "package" and image_size is not None)
    _require_none(architecture, **({"features": features} if takes_images else {"image_size": image_size}))
    if image_size is not None:
        return (architectures.default_channels(architecture, 3), image_size, image_size)
    return row_shape(architecture) if features is None else (features,)


def _workload(name: str) -> Workload | None:
    """Return the benchmarks' network of that name or one's own, None for an architecture.

    Raises UnknownName, and InvalidRequest as `use_network` does.
    """
    if ":" in name:
        use_network(name)
        return workload(name)
    try:
        architectures.resolve(name)
    except UnknownName as error:
        if name in WORKLOADS:
            return WORKLOADS[name]
        raise UnknownName("architecture", name, {*error.known, *WORKLOADS}) from None
    return None


def _laid_out(network: nn.Module, memory_format: str, architecture: str) -> nn.Module:
    if memory_format != "contiguous" and not any(weight.dim() == 4 for weight in network.parameters()):
        raise InvalidRequest(
            f'--memory-format means nothing to "{architecture}", which has no convolutions',
            hint="Leave it out.",
        )
    return laid_out(network, memory_format)


def _require_none(architecture: str, **given: int | None) -> None:
    for option, value in given.items():
        if value is not None:
            raise InvalidRequest(
                f'--{option.replace("_", "-")} means nothing to "{architecture}"', hint="Leave it out."
            )
