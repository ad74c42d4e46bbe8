"""Runs a module on other tensors than its own, and leaves it exactly as it was.

Differs: torch.func.functional_call, which does not restore modules that are shared under several names
(timm's coat shares its position encodings), and keeps what a forward pass hangs on its modules.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
    names = {id(value): name for name, value in values.items()}
    storages = {name: storage_key(value) for name, value in values.items()}
    trained = {storages[name] for name, value in values.items() if value.requires_grad}
    saved = [
        (module, dict(module.__dict__), dict(module._parameters), dict(module._buffers))
        for module in model.modules()
    ]
    try:
        for module, _, parameters, buffers in saved:
            module._parameters.update(_replaced(parameters, replacement))  # type: ignore[arg-type] # no Parameters
            module._buffers.update(_replaced(buffers, replacement))
        yield rebound
        for name, value in values.items():
            if storage_key(value) != storages[name]:
                raise _refusal(architecture, name, "other memory")
        copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        for module, attributes, parameters, buffers in saved:
            for name, value in _replaced(parameters, replacement).items():
                if module._parameters.get(name) is not value:
                    raise _refusal(architecture, names[id(value)], "another tensor")
            for name, value, bound in _buffers_bound_anew(module, _replaced(buffers, replacement)):
                if bound.shape != value.shape:
                    rebound.append(Rebound(name, is_buffer=True, before=value, after=bound))
                elif bound.dtype != value.dtype:
                    raise _refusal(architecture, names[id(value)], f"a tensor of {bound.dtype}")
                elif storage_key(bound) in trained:
                    raise _refusal(architecture, names[id(value)], "a parameter's memory")
                else:
                    copied.append((value, bound))
            rebound += _others_bound_anew(module, attributes, buffers)
        _copy(copied, frozenset(storages.values()))
    finally:
        for module, attributes, parameters, buffers in saved:
            module._parameters.clear()
            module._parameters.update(parameters)
            module._buffers.clear()
            module._buffers.update(buffers)
            module.__dict__.clear()
            module.__dict__.update(attributes)


def _buffers_bound_anew(
    module: nn.Module, values: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the buffers that no longer are their values, by the module's own names, and what they are."""
    for name, value in values.items():
        bound = module._buffers.get(name)
        if bound is not None and bound is not value:
            yield name, value, bound


def _others_bound_anew(
    module: nn.Module, attributes: Mapping[str, Any], buffers: Mapping[str, torch.Tensor | None]
) -> Iterator[Rebound]:
    """Yield the plain attributes that are another tensor than before, and the buffers that were none."""
    for name, before in attributes.items():
        after = module.__dict__.get(name)
        if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor) and after is not before:
            yield Rebound(name, is_buffer=False, before=before, after=after)
    for name, none in buffers.items():
        bound = module._buffers.get(name)
        if none is None and bound is not None:
            yield Rebound(name, is_buffer=True, before=None, after=bound)


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
