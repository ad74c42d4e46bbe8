"""Runs a module on other tensors than its own, and leaves it exactly as it was.

Differs: torch.func.functional_call, which does not restore modules that are shared under several names
(timm's coat shares its position encodings), and keeps what a forward pass hangs on its modules.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from tensile_db.capture.networks.own_errors import named
from tensile_db.capture.storages import StorageKey, storage_key
from tensile_db.errors import InvalidRequest

# nn.Module has no public way to bind its tensors to others.
# ruff: noqa: SLF001


@dataclass(frozen=True, slots=True)
class Rebound:
    """A tensor of a module's that its forward pass has bound to another one."""

    #: The module's own name of it.
    name: str
    is_buffer: bool
    #: None: there was none.
    before: torch.Tensor | None
    after: torch.Tensor


@contextmanager
def substituted(
    model: nn.Module, values: Mapping[str, torch.Tensor], architecture: str | None = None
) -> Iterator[list[Rebound]]:
    """Put `values`, by the model's qualified names, in place of parameters and buffers; restore at the end.

    A name that the model gives to a tensor more than once stands for all its places.  A buffer that the
    model binds to a new tensor, rather than updating it, is copied into its value, so that no update is lost;
    one of another shape is a cache that the model fills as it needs (timm's convit), and is dropped.
    Yields what will be, at the end, the tensors that the model has bound to others and that are not copied.
    architecture: its name, for errors.
    Raises InvalidRequest where a parameter is bound anew, or what a buffer is bound to is of another kind.
    """
    rebound: list[Rebound] = []
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    replacement = {id(tensor): values[name] for name, tensor in own.items()}
    storages = {name: storage_key(value) for name, value in values.items()}
    saved = [
        (module, dict(module.__dict__), dict(module._parameters), dict(module._buffers))
        for module in model.modules()
    ]
    try:
        for module, _, parameters, buffers in saved:
            module._parameters.update(_replaced(parameters, replacement))  # type: ignore[arg-type] # no Parameters
            module._buffers.update(_replaced(buffers, replacement))
        yield rebound
        names = {id(value): name for name, value in values.items()}
        for name, value in values.items():
            if storage_key(value) != storages[name]:
                raise _refusal(architecture, name, "other memory")
        bound_anew: list[tuple[torch.Tensor, torch.Tensor]] = []
        for module, attributes, parameters, buffers in saved:
            for name, value in _replaced(parameters, replacement).items():
                if module._parameters.get(name) is not value:
                    raise _refusal(architecture, names[id(value)], "another tensor")
            for name, value in _replaced(buffers, replacement).items():
                bound = module._buffers.get(name)
                if bound is None or bound is value:
                    continue
                if bound.shape != value.shape:
                    rebound.append(Rebound(name, True, value, bound))
                elif bound.dtype != value.dtype:
                    raise _refusal(architecture, names[id(value)], f"a tensor of {bound.dtype}")
                else:
                    bound_anew.append((value, bound))
            for name, before in (*attributes.items(), *buffers.items()):
                is_buffer = name in buffers
                after = module._buffers.get(name) if is_buffer else module.__dict__.get(name)
                had = before is None if is_buffer else isinstance(before, torch.Tensor)
                if had and isinstance(after, torch.Tensor) and after is not before:
                    rebound.append(Rebound(name, is_buffer, before, after))
        _copy(bound_anew, frozenset(storages.values()))
    finally:
        for module, attributes, parameters, buffers in saved:
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
            module.__dict__.clear()
            module.__dict__.update(attributes)


def _copy(bound: Sequence[tuple[torch.Tensor, torch.Tensor]], storages: Collection[StorageKey]) -> None:
    """Copy into each value what its buffer is bound to, as if all at once.

    storages: of values.  What lies there may be written before it is read.
    """
    with torch.no_grad():
        read = [new.clone() if storage_key(new) in storages else new for _, new in bound]
        for (value, _), new in zip(bound, read, strict=True):
            value.copy_(new)


def _replaced(
    tensors: Mapping[str, torch.Tensor | None], replacement: Mapping[int, torch.Tensor]
) -> dict[str, torch.Tensor]:
    return {name: replacement[id(tensor)] for name, tensor in tensors.items() if tensor is not None}


def _refusal(architecture: str | None, name: str, to: str) -> InvalidRequest:
    return InvalidRequest(
        f"{named(architecture)} binds {name} to {to}, which a captured step cannot",
        hint="Change its values in place instead, e.g. by copy_().",
    )
