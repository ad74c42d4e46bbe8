"""A fake mode that corrects what PyTorch's fake kernels return, operator by operator."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode

from tensile_db.capture.fakes.unwanted_results import without_unwanted

_NONE: Mapping[str, Any] = {}


class CorrectingFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call] # PyTorch's
    """Gives each operator's fake result, without what no kernel makes, to `correct`.

    A mode of its own above the fake mode would not do: the tracer would see what it makes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Fake kernels call further operators in the same mode; only what the kernel itself returns counts.
        self._depth = 0

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NONE,
    ) -> Any:
        """Run an operator on fake tensors."""
        self._depth += 1
        try:
            result = super().__torch_dispatch__(func, types, args, kwargs)
            if self._depth > 1:
                return result
            with self:
                return self.correct(func, args, kwargs, without_unwanted(func, args, result))
        finally:
            self._depth -= 1

    @abstractmethod
    def correct(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Return what the real kernel would; called within the mode."""
