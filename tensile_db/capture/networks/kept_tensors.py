"""Tensors that a network keeps beside its parameters and buffers: constants, each time as they were captured.

A trace has them as attributes of its module.

Source: ours.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import torch
from torch import fx, nn
from torch._ops import OpOverload

from tensile_db.capture.fakes.tensor_iterator import is_dense
from tensile_db.capture.networks.own_errors import named
from tensile_db.capture.storages import (
    StorageKey,
    flattened,
    is_lazy,
    storage_key,
    written_by,
)
from tensile_db.capture.substitute import Rebound
from tensile_db.errors import InvalidRequest

aten = torch.ops.aten

#: What makes the same values again, besides views.
_COPIES = frozenset({aten._to_copy.default, aten.clone.default, aten.lift_fresh_copy.default})  # noqa: SLF001


def constants(module: fx.GraphModule) -> Iterator[tuple[fx.Node, torch.Tensor]]:
    """Yield the tensors that a trace found in the network and keeps: neither state nor inputs."""
    for node in module.graph.nodes:
        kept = getattr(module, node.target) if node.op == "get_attr" else None
        if isinstance(kept, torch.Tensor):
            yield node, kept


def with_own_constants(module: fx.GraphModule) -> None:
    """Give each constant of a trace a storage of its own that is no larger than what it reaches.

    What lies between its elements stays, and what several of its elements are.
    """
    held = {str(node.target): constant for node, constant in constants(module)}
    shared = Counter(storage_key(constant) for constant in held.values())
    for name, constant in held.items():
        fills = constant.numel() * constant.itemsize == constant.untyped_storage().nbytes()
        if fills and is_dense(constant) and shared[storage_key(constant)] == 1 and not is_lazy(constant):
            continue
        read = constant.detach().resolve_conj().resolve_neg()
        reach = sum((size - 1) * step for size, step in zip(read.shape, read.stride(), strict=True)) + 1
        whole = read.as_strided((reach if read.numel() else 0,), (1,), read.storage_offset()).clone()
        setattr(module, name, whole.as_strided(read.shape, read.stride(), 0))


def require_state_substituted(module: fx.GraphModule, model: nn.Module, architecture: str | None) -> None:
    """Raise InvalidRequest where a trace has tensors of the model itself in it, in place of its state.

    They would stay as they are, whatever is trained: such are parameters that forward() does not take from
    the modules, but from a list or from what was computed of them before.
    """
    own = {
        storage_key(tensor): name
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if tensor.layout == torch.strided
    }
    for _, constant in constants(module):
        if constant.layout != torch.strided:
            continue
        name = own.get(storage_key(constant))
        if name is not None or isinstance(constant, nn.Parameter):
            raise InvalidRequest(
                f"{named(architecture)} takes {name or 'a parameter'} from elsewhere than a module,"
                " and would not see how it is trained",
                hint="Keep no other reference to a parameter or buffer, and no view of it.",
            )


def require_kept(module: fx.GraphModule, rebound: Iterable[Rebound], architecture: str | None) -> None:
    """Raise InvalidRequest where the next step would not find a constant, or a buffer, as this one did.

    rebound: tensors that the forward pass has bound to others.  What it makes anew of nothing that changes is
    a cache, and what it only keeps for others to look at, no step reads.
    """
    hint = "Keep it as a buffer, by register_buffer(), that has its shape and values from the start."
    kept = {storage_key(constant): node for node, constant in constants(module)}
    own = {storage_key(node.meta["val"]) for node, _ in constants(module)}
    for node in module.graph.nodes:
        if any(storage_key(value) in own for value in written_by(node)):
            raise InvalidRequest(
                f"{named(architecture)} changes a tensor that is neither a parameter nor a buffer,"
                " and the next step would not see it",
                hint=hint,
            )
    state = {storage_key(node.meta["val"]) for node in module.graph.nodes if node.op == "placeholder"}
    for each in rebound:
        sources = state
        if not each.is_buffer:
            if each.before is None or (read := kept.get(storage_key(each.before))) is None:
                continue
            sources = state | {storage_key(read.meta["val"])}
        if storage_key(each.after) in _computed_of(module, sources):
            raise InvalidRequest(
                f"{named(architecture)} binds {each.name} to what it computes,"
                " and the next step would not see it",
                hint=hint,
            )


def _computed_of(module: fx.GraphModule, sources: Collection[StorageKey]) -> Collection[StorageKey]:
    """Return the storages whose values are computed of these, not only copied."""
    depends = set(sources)
    computed: set[StorageKey] = set()
    for node in module.graph.nodes:
        if not isinstance(node.target, OpOverload):
            continue
        read = {
            storage_key(value) for value in _tensors([each.meta.get("val") for each in node.all_input_nodes])
        }
        if read.isdisjoint(depends):
            continue
        made = {storage_key(value) for value in _tensors(node.meta.get("val"))} - read
        made |= {storage_key(value) for value in written_by(node)}
        depends |= made
        if node.target not in _COPIES or not read.isdisjoint(computed):
            computed |= made
    return computed


def _tensors(value: object) -> Iterator[torch.Tensor]:
    return (each for each in flattened(value) if isinstance(each, torch.Tensor))
