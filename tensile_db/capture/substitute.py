"""Runs a module on other tensors than its own, and leaves it exactly as it was.

Differs: torch.func.functional_call, which does not restore modules that are shared under several names
(timm's coat shares its position encodings), and keeps what a forward pass hangs on its modules.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

# nn.Module has no public way to bind its tensors to others.
# ruff: noqa: SLF001


@contextmanager
def substituted(model: nn.Module, values: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Put `values`, by the model's qualified names, in place of parameters and buffers; restore at the end.

    A name that the model gives to a tensor more than once stands for all its places.  A buffer that the
    model binds to a new tensor, rather than updating it, is copied into its value, so that no update is lost;
    one of another shape is a cache that the model fills as it needs (timm's convit), and is dropped.
    """
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    replacement = {id(tensor): values[name] for name, tensor in own.items()}
    saved = [
        (module, dict(module.__dict__), dict(module._parameters), dict(module._buffers))
        for module in model.modules()
    ]
    try:
        for module, _, parameters, buffers in saved:
            module._parameters.update(_replaced(parameters, replacement))  # type: ignore[arg-type] # no Parameters
            module._buffers.update(_replaced(buffers, replacement))
        yield
        for module, _, _, buffers in saved:
            for name, value in _replaced(buffers, replacement).items():
                bound = module._buffers.get(name)
                if bound is not None and bound is not value and bound.shape == value.shape:
                    with torch.no_grad():
                        value.copy_(bound)
    finally:
        for module, attributes, parameters, buffers in saved:
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
            module.__dict__.clear()
            module.__dict__.update(attributes)


def _replaced(
    tensors: Mapping[str, torch.Tensor | None], replacement: Mapping[int, torch.Tensor]
) -> dict[str, torch.Tensor]:
    return {name: replacement[id(tensor)] for name, tensor in tensors.items() if tensor is not None}
