"""A frozen backbone: of a network only the layers that give its outputs are trained."""

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from tensile_db.capture.state import model_state
from tensile_db.errors import InvalidRequest


def output_tensors(model: nn.Module, wider: Mapping[str, Sequence[int]]) -> frozenset[str]:
    """Return the names of a network's tensors whose shapes go by how many outputs it has.

    wider: shapes that they would have with one output more, by name (capture/state.py).
    """
    own = model_state(model)
    return frozenset(name for name, tensor in own.items() if tuple(wider[name]) != tuple(tensor.shape))


def freeze_backbone(
    model: nn.Module, wider: Mapping[str, Sequence[int]] | None, *, architecture: str
) -> None:
    """Let those parameters alone be trained whose shapes go by the number of outputs.

    wider: as of `output_tensors`; None where nobody knows.
    Raises InvalidRequest where it is not known which these are.
    """
    of_outputs = frozenset() if wider is None else output_tensors(model, wider)
    if not of_outputs:
        raise InvalidRequest(
            f'it is not known which layer of the architecture "{architecture}" gives its outputs, and all'
            " others cannot be frozen",
            hint='Leave out "freeze_backbone".',
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(f"parameter/{name}" in of_outputs)


def frozen_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules of the backbone, in a model of which it is frozen.

    They have parameters, of which none is trained; or none at all, as dropout, and a frozen one behind them.
    """
    children = list(model.children())
    are_frozen = [_is_frozen(child) for child in children]
    for place, child in enumerate(children):
        if are_frozen[place]:
            yield child
        elif next(child.parameters(), None) is not None:
            yield from frozen_modules(child)
        elif any(are_frozen[place:]):
            yield child


def _is_frozen(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
