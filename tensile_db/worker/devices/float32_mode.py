"""Which calls may have float32 shortened to TF32: a job's own choice, and a setting of the whole process.

PyTorch asks the setting when a function is called, and not when its kernel runs.  Jobs call functions in
threads of their own, so that whatever could look at the setting is called under one lock, by jobs of either
kind.  Calls to a stream take microseconds, and most of that time they hold the interpreter's lock anyway.
Within it nobody waits for another lock: who draws random numbers has the generator before.

Source: pytorch docs/source/notes/cuda.rst, "TensorFloat-32"; aten/src/ATen/Context.h.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload

Function = Callable[..., Any]


class Float32Mode:
    """The setting of one device's process.  Safe for many threads."""

    def __init__(self, allow_tf32: Callable[[bool], None]) -> None:
        """allow_tf32: changes the setting; nobody else may."""
        self._allow_tf32 = allow_tf32
        self._lock = threading.Lock()
        self._allowed: bool | None = None

    def bound(self, function: Function, *, tf32: bool) -> Function:
        """Return the function, called with the setting as `tf32` says."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if self._allowed is not tf32:
                    # Not known, should the change fail halfway.
                    self._allowed = None
                    self._allow_tf32(tf32)
                    self._allowed = tf32
                return function(*args, **kwargs)

        return call


def may_shorten(function: Function | None) -> bool:
    """Whether a function may look at the setting: any but those that go element by element."""
    return not (isinstance(function, OpOverload) and torch.Tag.pointwise in function.tags)
