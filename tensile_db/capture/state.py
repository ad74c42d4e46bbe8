"""The tensors that outlive an iteration: their names, their layout, their first values.

Names are "parameter/<qualified>", "buffer/<qualified>" and "optimizer_state/<qualified>/<slot>", where
<qualified> is the name that nn.Module gives, and those of loss_scale.py.  A parameter that two modules share
has its first name.
"""

import torch
from torch import nn

from tensile_db.capture.loss_scale import initial_loss_scale
from tensile_db.capture.optimizers import OptimizerConfig, initial_slot, slots
from tensile_db.graph import Role

_PREFIXES = {
    "parameter/": Role.PARAMETER,
    "buffer/": Role.BUFFER,
    "optimizer_state/": Role.OPTIMIZER_STATE,
    "loss_scale/": Role.OPTIMIZER_STATE,
}


def role_of(name: str) -> Role:
    """Return the role that a persistent tensor's name tells."""
    return _PREFIXES[name[: name.index("/") + 1]]


def is_of_model(name: str) -> bool:
    """Tell a model's parameters and buffers from what only its training keeps."""
    return role_of(name) is not Role.OPTIMIZER_STATE


def model_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the model's own parameters, then buffers, by name."""
    state: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        state[f"parameter/{name}"] = parameter.detach()
    for name, buffer in model.named_buffers():
        state[f"buffer/{name}"] = buffer.detach()
    return state


def initial_state(
    model: nn.Module, optimizer: OptimizerConfig | None = None, *, scales_loss: bool = False
) -> dict[str, torch.Tensor]:
    """Return copies of parameters and buffers, and the optimizer's state before its first step.

    Every tensor owns a dense storage that nothing else shares.  Without an optimizer: the state that a
    forward step needs.  scales_loss: as the step's precision does.
    """
    state = {name: dense_copy(tensor) for name, tensor in model_state(model).items()}
    if scales_loss:
        state |= initial_loss_scale()
    if optimizer is not None:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                for slot in slots(optimizer):
                    state[f"optimizer_state/{name}/{slot}"] = initial_slot(
                        slot, dense_copy(parameter.detach())
                    )
    return state


def dense_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with a storage of its own, dimensions ordered in memory as the original's."""
    return tensor.clone(memory_format=torch.preserve_format)
