"""What a network must be for its training step to be captured, besides running on the batch.

Source: ours.
"""

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import fx, nn
from torch._ops import OpOverload
from torch.nn import parameter as nn_parameter

from tensile_db.capture.networks.own_errors import named
from tensile_db.capture.networks.shared_memory import require_separate_parameters
from tensile_db.capture.operators import is_random
from tensile_db.capture.storages import flattened, is_lazy, storage_key, written_by
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
    if any(map(nn_parameter.is_lazy, (*model.parameters(), *model.buffers()))):
        raise InvalidRequest(
            f"{named(architecture)} has lazy modules, whose parameters have no shape yet",
            hint="Tell their sizes, as nn.Linear instead of nn.LazyLinear does.",
        )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.layout != torch.strided or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else tensor.layout
            raise InvalidRequest(
                f"{named(architecture)} has {name}, which is {kind}, and cannot be captured",
                hint="Let its parameters and buffers be dense tensors of numbers.",
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


def require_no_gradients_aside(
    state: Mapping[str, torch.Tensor], trained: Collection[str], architecture: str | None
) -> None:
    """Raise InvalidRequest where a step has taken gradients by itself, or begun to train what was not.

    state: parameters and buffers after the step, by their qualified names.
    """
    for name, value in state.items():
        if value.is_leaf and value.grad is not None:
            raise InvalidRequest(
                f"{named(architecture)} adds to a gradient of {name} by backward(), which cannot be captured",
                hint="Take gradients within the network by torch.autograd.grad().",
            )
        if value.is_leaf and value.requires_grad and name not in trained:
            raise InvalidRequest(
                f"{named(architecture)} begins to train {name} in its forward pass",
                hint="Let what is trained require its gradient from the start.",
            )


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


def require_jobs_generator(module: fx.GraphModule, architecture: str | None) -> None:
    """Raise InvalidRequest where a trace draws random numbers from another generator than PyTorch's own."""
    for node in module.graph.nodes:
        kept = getattr(module, node.target) if node.op == "get_attr" else None
        if isinstance(kept, torch.Generator) and kept is not torch.default_generator:
            raise InvalidRequest(
                f"{named(architecture)} draws random numbers from a generator of its own,"
                " which a captured step does not have",
                hint="Leave out generator=: a job's numbers come from its seed.",
            )


def require_operators(module: fx.GraphModule, state: Collection[fx.Node], architecture: str | None) -> None:
    """Raise InvalidRequest where a trace has more than ATen's operators on dense tensors.

    state: placeholders, whose tensors lie as they did when the step began.
    """
    own = {storage_key(node.meta["val"]) for node in state}
    for node in module.graph.nodes:
        is_operator = isinstance(node.target, OpOverload)
        if node.op == "call_function" and not is_operator and node.target is not operator.getitem:
            raise InvalidRequest(
                f"{named(architecture)} uses {node.target}, which cannot be captured",
                hint="Write it as operations on tensors, one after another.",
            )
        value = getattr(module, node.target) if node.op == "get_attr" else node.meta.get("val")
        for made in flattened(value):
            if isinstance(made, torch.Tensor) and made.layout != torch.strided:
                raise InvalidRequest(
                    f"{named(architecture)} has a tensor of layout {made.layout}, which cannot be captured",
                    hint="Use dense tensors only.",
                )
        is_relaid = is_operator and torch.Tag.inplace_view in node.target.tags
        if is_relaid and storage_key(node.args[0].meta["val"]) in own:
            raise InvalidRequest(
                f"{named(architecture)} changes a parameter or buffer by {node.target},"
                " which cannot be captured",
                hint="Change its values in place, or take a view of it.",
            )


def require_plain_writes(module: fx.GraphModule, architecture: str | None) -> None:
    """Raise InvalidRequest where a trace writes into what is conjugated, or negated, only when it is read."""
    for view in module.graph.nodes:
        if not is_lazy(view.meta.get("val")):
            continue
        for node in view.users:
            if any(map(is_lazy, written_by(node))):
                raise InvalidRequest(
                    f"{named(architecture)} changes a conjugated view, or a part of it, in place,"
                    " which cannot be captured",
                    hint="Change what it is a view of, or what resolve_conj() makes of it.",
                )
