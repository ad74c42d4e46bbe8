"""Assignments to a tensor's `data`, of which no trace hears: it would go on with what was there before.

Source: torch.overrides.TorchFunctionMode.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tensile_db.capture.networks.own_errors import named
from tensile_db.errors import InvalidRequest


class DataAssignmentsRefused(TorchFunctionMode):
    """Within it, `tensor.data = other` raises InvalidRequest."""

    def __init__(self, architecture: str | None) -> None:
        super().__init__()
        self._architecture = architecture

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function unless it is that assignment."""
        # Each access makes another object of it.
        if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined] # a descriptor, on the class
            raise InvalidRequest(
                f"{named(self._architecture)} assigns to the data of a tensor, which cannot be captured",
                hint="Change its values in place instead, e.g. by copy_() within torch.no_grad().",
            )
        return func(*args, **(kwargs or {}))
