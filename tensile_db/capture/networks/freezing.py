"""A frozen backbone: of a network only the layer that gives its outputs is trained."""

from collections.abc import Iterator, Mapping, Sequence

from torch import nn

from tensile_db.capture.state import model_state
from tensile_db.errors import InvalidRequest


def freeze_backbone(
    model: nn.Module, wider: Mapping[str, Sequence[int]] | None, *, architecture: str
) -> None:
    """Let those parameters alone be trained whose shapes go by the number of outputs.

    wider: shapes that the tensors would have with one output more; None where nobody knows.
    Raises InvalidRequest where it is not known which these are.
    """
    of_outputs = {
        name
        for name, tensor in model_state(model).items()
        if wider is not None and tuple(wider[name]) != tuple(tensor.shape)
    }
    if not of_outputs:
        raise InvalidRequest(
            f'it is not known which layer of the architecture "{architecture}" gives its outputs, and all'
            " others cannot be frozen",
            hint='Leave out "freeze_backbone".',
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(f"parameter/{name}" in of_outputs)


def frozen_modules(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost modules that have parameters of which none is trained.

    What has none of its own, as dropout, counts to the module that it is in.
    """
    for child in model.children():
        parameters = list(child.parameters())
        if not parameters:
            continue
        if any(parameter.requires_grad for parameter in parameters):
            yield from frozen_modules(child)
        else:
            yield child
