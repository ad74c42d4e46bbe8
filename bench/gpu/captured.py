"""Captured steps in a folder, so that a section which times things finds them there.

Steps for a GPU can only be captured where there is one, and each takes seconds of the processor alone.
"""

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._ops import OpOverload

from tensile_db.capture.step import CapturedStep


def captured(path: Path | None, capture: Callable[[], CapturedStep]) -> CapturedStep:
    """Return the step that the file holds, or capture it and put it there; path: None keeps nothing.

    The file's name says all that the step depends on.
    """
    if path is not None and path.exists():
        # Written below, into this user's own folder.
        kept: CapturedStep = pickle.loads(path.read_bytes())  # noqa: S301
        return kept
    step = capture()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Whole or not at all: another process may look for it.
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(_pickled(step))
        partial.replace(path)
    return step


class _Pickler(pickle.Pickler):
    """Writes PyTorch's operators by their names: they are bound to C++ functions, which cannot be written."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, OpOverload):
            return _operator, (value.name(),)
        return NotImplemented


def _pickled(step: CapturedStep) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(step)
    return buffer.getvalue()


def _operator(name: str) -> OpOverload:
    """Return the operator of a name like aten::add.Tensor, or aten::relu, whose overload has none."""
    namespace, _, packet = name.partition("::")
    packet, _, overload = packet.partition(".")
    found: OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    return found
