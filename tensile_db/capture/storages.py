"""Which storages the fake tensors of a trace are views of, and into which of them a node writes."""

from collections.abc import Iterator
from typing import Any, NewType

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import map_arg

from tensile_db.capture.operators import written_arguments

#: Identity of a storage, valid while one of its tensors lives.
StorageKey = NewType("StorageKey", int)


def storage_key(value: torch.Tensor) -> StorageKey:
    """Return the identity of the storage that a tensor is a view of, one without data too."""
    return StorageKey(value.untyped_storage()._cdata)  # noqa: SLF001 - a storage has no public identity


def is_lazy(value: object) -> bool:
    """Tell whether it is a tensor that is conjugated, or negated, only when it is read."""
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def flattened(value: Any) -> Iterator[Any]:
    """Return what a function returned, its tuples and lists opened."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from flattened(item)
    else:
        yield value


def written_by(node: fx.Node) -> list[torch.Tensor]:
    """Return the fake tensors that a node of a trace writes into in place."""
    if not isinstance(node.target, OpOverload):
        return []
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda used: used.meta.get("val"))
    written = flattened(written_arguments(node.target, args, kwargs))
    return [value for value in written if isinstance(value, torch.Tensor)]
