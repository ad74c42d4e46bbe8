"""Workloads beyond the benchmarks' own: other architectures, and networks that a function of one's own makes.

Such a function takes nothing and returns an nn.Module and one row of what it takes: a float32 or int64 tensor
without the batch's dimension, of which shape and type count.  Of a batch of any number of rows the network
returns as many rows of outputs, one output for each class, or so many times as many where each token or pixel
has a target of its own.  It is trained with cross entropy, as all workloads are.

Source: ours; docs/planner.md, "A network of your own".
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import nn

from tensile_db.bench.networks.workloads import WORKLOADS, Workload
from tensile_db.capture.networks import architectures
from tensile_db.capture.outputs import described
from tensile_db.capture.trace import Layout, Trace, trace_step
from tensile_db.errors import InvalidRequest, TensileError, UnknownName

_Made = TypeVar("_Made")

#: As many as ImageNet has, for which the architectures were made.
CLASSES = 1000
#: Columns, where a network takes such.
FEATURES = 16
#: Larger than any network's own images, to which they are cut down.
_LARGEST = (2**16, 2**16)
#: Batch norms cannot be trained on one.
_ROWS = 2

#: Where a function of a network can be seen.
HINT = "docs/planner.md, A network of your own, has one that can be copied."


def row_shape(architecture: str) -> tuple[int, ...]:
    """Return the shape of one row that an architecture is planned for where nobody says another.

    Raises UnknownName.
    """
    if not architectures.resolve(architecture).takes_images:
        return (FEATURES,)
    channels = architectures.default_channels(architecture, 3)
    return (channels, *architectures.default_image_size(architecture, _LARGEST))


def architecture_workload(name: str) -> Workload:
    """Return the training of an architecture on rows of its own shape and 1,000 classes.

    Raises UnknownName for a name that is neither an architecture's nor a workload's, InvalidRequest for a
    package's.
    """
    try:
        kind = architectures.resolve(name).kind
    except UnknownName as error:
        raise UnknownName("workload", name, {*WORKLOADS, *error.known}) from None
    if kind == "package":
        raise InvalidRequest(
            f'architecture "{name}" is a package\'s, which does not say what rows it takes',
            hint="Write a function that builds it for some, and give module:function; docs/planner.md,"
            " A network of your own, has one.",
        )
    shape = row_shape(name)
    build = partial(architectures.build, name, num_outputs=CLASSES, input_shape=shape, seed=0)
    return Workload(
        name=name,
        title=name,
        row_shape=shape,
        build=lambda _batch, _scale: _with_values_where_it_must(build),
        scales=False,
    )


def own_workload(name: str, function: Callable[[], object]) -> Workload:
    """Return the training of the network that a function makes (the module's docstring).

    function: raises InvalidRequest alone.
    Raises InvalidRequest where the function does, or makes what cannot be trained so.
    """
    make = partial(_made, name, function)
    on_host = partial(_on, "cpu", make)
    try:
        return _tried(name, *_on("meta", make), build=make)
    except InvalidRequest:
        # Some networks want values as they are built, or have tensors that are no parameters and no buffers.
        return _tried(name, *on_host(), build=on_host)


def _on(device: str, make: Callable[[], _Made]) -> _Made:
    with torch.device(device):
        return make()


def _made(name: str, function: Callable[[], object]) -> tuple[nn.Module, torch.Tensor]:
    match function():
        case (nn.Module() as network, torch.Tensor() as row):
            if row.dtype not in (torch.float32, torch.int64) or 0 in row.shape:
                raise InvalidRequest(
                    f'network "{name}" takes rows of {row.dtype} and shape {tuple(row.shape)}',
                    hint="A row is a float32 or int64 tensor with something in it.",
                )
            return network, row
        case other:
            found = type(other).__name__
            raise InvalidRequest(
                f'network "{name}" gave a {found}, not a module and one of its rows', hint=HINT
            )


def _tried(
    name: str, network: nn.Module, row: torch.Tensor, *, build: Callable[[], tuple[nn.Module, torch.Tensor]]
) -> Workload:
    """Return the workload of a network, after a forward pass that tells how many targets a row has."""
    features = Layout(shape=(_ROWS, *row.shape), dtype=row.dtype)
    returned: list[torch.Size] = []

    def outputs_of(output: object, _rest: Sequence[torch.Tensor]) -> torch.Tensor:
        if (
            not isinstance(output, torch.Tensor)
            or output.dim() != 2
            or len(output) % _ROWS
            or not len(output)
        ):
            raise InvalidRequest(
                f'network "{name}" returns {described(output)} for {_ROWS} rows of its input',
                hint="It must return a row of outputs, one for each class, for each target: where tokens have"
                " a target each, (rows x tokens, classes), e.g. by flatten(0, 1).",
            )
        returned.append(output.shape)
        return output.float()

    device = torch.device("cpu")
    trace = trace_step(network, [features], outputs_of, training=False, device=device, architecture=name)
    _require_all_on(device, trace, name)
    ((outputs, _classes),) = returned
    return Workload(
        name=name,
        title=name,
        row_shape=tuple(row.shape),
        build=lambda _batch, _scale: build()[0],
        targets_per_row=outputs // _ROWS,
        features_dtype=row.dtype,
        scales=False,
        is_known=False,
    )


def _require_all_on(device: torch.device, trace: Trace, name: str) -> None:
    """Raise InvalidRequest where the network has tensors elsewhere: constants made without values."""
    for node in trace.module.graph.nodes:
        if node.op == "get_attr":
            constant = getattr(trace.module, node.target)
            if isinstance(constant, torch.Tensor) and constant.device.type != device.type:
                raise InvalidRequest(f'network "{name}" has a tensor on {constant.device}')


def _with_values_where_it_must(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a network on the device that is the default; on the host where that cannot be."""
    try:
        return build()
    except TensileError:
        raise
    except Exception:  # noqa: BLE001  # some want numbers, which meta tensors have none of
        return _on("cpu", build)
