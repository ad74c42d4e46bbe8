"""Two functions, one after the other, as one with the first one's arguments."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Between = TypeVar("Between")
Result = TypeVar("Result")


def composed(first: Callable[P, Between], second: Callable[[Between], Result]) -> Callable[P, Result]:
    """Return the function that calls `second` with what `first` makes of its arguments.

    Its signature and its documentation are the first one's.
    """

    @wraps(first)
    def both(*args: P.args, **kwargs: P.kwargs) -> Result:
        return second(first(*args, **kwargs))

    return both
