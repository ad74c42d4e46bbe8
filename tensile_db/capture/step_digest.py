"""A digest of a captured step: equal ones do the same arithmetic with the same constants."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from tensile_db.capture.step import CapturedStep


def step_digest(step: CapturedStep) -> str:
    """Return SHA-256 over a step's calls, constants, inputs, outputs and precision, in hexadecimal.

    That is more than its graph, which knows of shapes alone.  Names of persistent tensors count, their values
    do not.
    """
    calls = [
        (str(call.function), _told(call.args), _told(call.kwargs), _told(call.outputs)) for call in step.calls
    ]
    text = repr((calls, step.inputs, _told(step.outputs), _told(step.state), step.tf32))
    return hashlib.sha256(text.encode()).hexdigest()


def _told(value: Any) -> object:
    """Return what stands for an argument in the text: of a constant tensor, all of its bits."""
    if isinstance(value, torch.Tensor):
        elements = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        return value.dtype, tuple(value.shape), hashlib.sha256(elements.data).hexdigest()
    if isinstance(value, list | tuple):
        return [_told(item) for item in value]
    if isinstance(value, Mapping):
        return [(name, _told(item)) for name, item in value.items()]
    return value
