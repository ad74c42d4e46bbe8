"""A workload of one's own: the training of a network that a function makes.

The function takes nothing and returns an nn.Module and one row of what that takes: a float32 or int64 tensor
without the batch's dimension, of which only shape and type matter.  Of a batch of any number of rows the
network returns as many rows of outputs, one output for each class, or so many times as many where each token
or pixel has a target of its own.  It is trained with cross entropy, as all workloads are.

Source: ours; docs/planner/your_own.md, "A network of your own".
"""

import re
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from tensile_db.bench.networks.workloads import Workload
from tensile_db.capture.networks.kept_tensors import constants
from tensile_db.capture.outputs import described
from tensile_db.capture.trace import Layout, Trace, trace_step
from tensile_db.errors import InvalidRequest

#: A batch norm has no variance over one.
_ROWS = 2

#: Where a function of a network can be seen.
HINT = (
    'Return (nn.Module, torch.Tensor); docs/planner/your_own.md, "A network of your own", has one that can be'
    " copied."
)

#: Returns a network and a row of what it takes; raises InvalidRequest alone.
_Make = Callable[[], tuple[nn.Module, torch.Tensor]]


def own_workload(name: str, function: Callable[[], object]) -> Workload:
    """Return the training of the network that a function makes (the module's docstring).

    function: raises InvalidRequest alone.
    Raises InvalidRequest where the function does, or makes what cannot be trained so.
    """
    make = partial(_network_and_row, name, function)
    on_host = partial(_on, "cpu", make)
    try:
        return _workload(name, *_on("meta", make), build=make)
    except InvalidRequest as error:
        # Some read values as they are built, or keep tensors that are neither parameters nor buffers.
        if re.search(r"\bmeta\b", error.message) is None:
            raise
    return _workload(name, *on_host(), build=on_host)


def _network_and_row(name: str, function: Callable[[], object]) -> tuple[nn.Module, torch.Tensor]:
    match function():
        case (nn.Module() as network, torch.Tensor() as row):
            if row.dtype not in (torch.float32, torch.int64) or 0 in row.shape:
                raise InvalidRequest(
                    f'network "{name}" takes rows of {row.dtype} and shape {tuple(row.shape)}',
                    hint="A row is a float32 or int64 tensor with something in it.",
                )
            return network, row
        case tuple() as several:
            found = f"({', '.join(type(each).__name__ for each in several)})"
        case other:
            found = type(other).__name__
    raise InvalidRequest(f'network "{name}" gave {found}, not a module and one of its rows', hint=HINT)


def _on(device: str, make: _Make) -> tuple[nn.Module, torch.Tensor]:
    with torch.device(device):
        return make()


def _workload(name: str, network: nn.Module, row: torch.Tensor, *, build: _Make) -> Workload:
    """Return the workload of a network, after a training step that tells how many targets a row has."""
    returned: list[torch.Size] = []

    def total(output: object, _rest: Sequence[torch.Tensor]) -> torch.Tensor:
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
        if output.shape[1] < 2:
            raise InvalidRequest(
                f'network "{name}" returns {output.shape[1]} outputs a row',
                hint="It must return one for each class, two or more.",
            )
        returned.append(output.shape)
        return output.sum()

    features = Layout(shape=(_ROWS, *row.shape), dtype=row.dtype)
    trace = trace_step(
        network, [features], total, training=True, device=torch.device("cpu"), architecture=name
    )
    _require_all_on_host(trace, name)
    ((outputs, _classes),) = returned
    return Workload(
        name=name,
        title=name,
        row_shape=tuple(row.shape),
        build=lambda _batch, _scale: build()[0],
        targets_per_row=outputs // _ROWS,
        features_dtype=row.dtype,
        scales=False,
        can_be_kept=False,
    )


def _require_all_on_host(trace: Trace, name: str) -> None:
    """Raise InvalidRequest where the network keeps a constant elsewhere, which a trace may not mind."""
    for _, constant in constants(trace.module):
        if constant.device.type != "cpu":
            raise InvalidRequest(
                f'network "{name}" keeps a tensor on {constant.device}', hint="Register it as a buffer."
            )
