"""What a network must be for its training step to be captured, besides running on the batch.

Source: ours.
"""

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.nn.parameter import is_lazy

from tensile_db.capture.networks.own_errors import named
from tensile_db.capture.networks.shared_memory import require_separate_parameters
from tensile_db.capture.operators import is_random
from tensile_db.capture.storages import storage_key, written_by
from tensile_db.errors import InvalidRequest


def require_traceable(model: nn.Module, architecture: str | None) -> None:
    """Raise InvalidRequest for modules that cannot be traced."""
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidRequest(
                f"{named(architecture)} is compiled by torch.jit, and cannot be captured",
                hint="Give it as it is before that.",
            )
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise InvalidRequest(
                f"{named(architecture)} is wrapped for several devices, and runs on one",
                hint="Give what is inside, its attribute module.",
            )
    if any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        raise InvalidRequest(
            f"{named(architecture)} has lazy modules, whose parameters have no shape yet",
            hint="Tell their sizes, as nn.Linear instead of nn.LazyLinear does.",
        )
    for name, parameter in model.named_parameters():
        if parameter._post_accumulate_grad_hooks:  # noqa: SLF001  # there is no public way to ask
            raise InvalidRequest(
                f"{named(architecture)} has a hook for when the gradient of {name} has been accumulated,"
                " which nothing would call",
                hint="Leave out register_post_accumulate_grad_hook; the optimizer is the training's.",
            )
    require_separate_parameters(model, architecture)


def require_differentiable(
    loss: torch.Tensor, trained: Sequence[torch.Tensor], architecture: str | None
) -> None:
    """Raise InvalidRequest where nothing is trained, or a loss does not come from it as autograd knows."""
    if not trained:
        raise InvalidRequest(
            f"{named(architecture)} has no parameters to train", hint="Let some require a gradient."
        )
    if not loss.requires_grad:
        raise InvalidRequest(
            f"{named(architecture)} gives outputs that do not depend on what is trained",
            hint="Compute them from parameters, by operations that have gradients: no detach() or no_grad().",
        )
    if any(node.name() == "CheckpointFunctionBackward" for node in _nodes_behind(loss)):
        # Its parameters get their gradients aside, from a backward pass of its own, and nobody is told.
        raise InvalidRequest(
            f"{named(architecture)} has a torch.utils.checkpoint with use_reentrant=True,"
            " whose gradients cannot be captured",
            hint="Leave out the checkpoint: what is computed again is planned for anyway.",
        )


def _nodes_behind(loss: torch.Tensor) -> Iterator[torch.autograd.graph.Node]:
    """Yield the nodes of autograd's graph that a loss comes from, each once."""
    left = [loss.grad_fn]
    seen = set()
    while left:
        node = left.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            left.extend(following for following, _ in node.next_functions)


def require_plain_gradients(
    gradients: Sequence[torch.Tensor | None], backward: Collection[fx.Node], architecture: str | None
) -> None:
    """Raise InvalidRequest where gradients are sparse, or the backward pass draws random numbers.

    backward: the nodes of the backward pass.
    """
    if any(made is not None and made.layout != torch.strided for made in gradients):
        raise InvalidRequest(
            f"{named(architecture)} has sparse gradients, which cannot be captured",
            hint="Leave out sparse=True of its embeddings.",
        )
    for node in backward:
        # Kernels of attention are told what they drew in the forward pass.
        if not isinstance(node.target, OpOverload) or "backward" in str(node.target):
            continue
        if is_random(node.target, node.args, node.kwargs):
            raise InvalidRequest(
                f"{named(architecture)} draws random numbers in its backward pass, as a dropout within"
                " torch.utils.checkpoint does, which would not be those of before",
                hint="Leave out the checkpoint: what is computed again is planned for anyway.",
            )


def require_plain_writes(module: fx.GraphModule, architecture: str | None) -> None:
    """Raise InvalidRequest where a trace writes into what is conjugated, or negated, only when it is read."""
    for view in module.graph.nodes:
        if not _is_lazy(view.meta.get("val")):
            continue
        for node in view.users:
            if any(map(_is_lazy, written_by(node))):
                raise InvalidRequest(
                    f"{named(architecture)} changes a conjugated view, or a part of it, in place,"
                    " which cannot be captured",
                    hint="Change what it is a view of, or what resolve_conj() makes of it.",
                )


def _is_lazy(value: object) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def constants(module: fx.GraphModule) -> Iterator[torch.Tensor]:
    """Yield the tensors that a trace found in the network and keeps: neither state nor inputs."""
    for node in module.graph.nodes:
        kept = getattr(module, node.target) if node.op == "get_attr" else None
        if isinstance(kept, torch.Tensor):
            yield kept


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
    for constant in constants(module):
        if constant.layout != torch.strided:
            continue
        name = own.get(storage_key(constant))
        if name is not None or isinstance(constant, nn.Parameter):
            raise InvalidRequest(
                f"{named(architecture)} takes {name or 'a parameter'} from elsewhere than a module,"
                " and would not see how it is trained",
                hint="Keep no other reference to a parameter or buffer, and no view of it.",
            )
