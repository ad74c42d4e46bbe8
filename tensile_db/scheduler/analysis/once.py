"""What a graph alone decides, or a graph in one order, worked out once.

Both are frozen and known by identity, for to compare two of them takes as long as most analyses.  A process
that plans the same jobs again and again keeps one object per graph (`worker/planning/known_graphs.py`).  What
is known keeps its graph: who sees every graph once, as a worker does, forgets it when that is over.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Concatenate, ParamSpec, TypeVar

#: Things, with what else is asked, whose results are kept of each analysis: graphs of more jobs than share a
#: device, in the orders and with the splits tried last.
_KEPT = 32

#: What empties the memory of each analysis.
_forget: list[Callable[[], None]] = []

Thing = TypeVar("Thing")
Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


class _Same:
    """A thing that is equal only to itself."""

    __slots__ = ("thing",)

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.thing is self.thing


def once_for_each(
    analysis: Callable[Concatenate[Thing, Parameters], Result],
) -> Callable[Concatenate[Thing, Parameters], Result]:
    """Return the analysis with its results kept for the things asked for last.

    Nobody may change a result, but put into a store what the thing decides, too.
    What else it is asked with must be hashable.
    """

    @lru_cache(maxsize=_KEPT)
    def known(same: _Same, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        thing: Thing = same.thing  # type: ignore[assignment]  # `kept` below is the only one to call
        return analysis(thing, *args, **kwargs)

    _forget.append(known.cache_clear)

    @wraps(analysis)
    def kept(thing: Thing, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        return known(_Same(thing), *args, **kwargs)  # type: ignore[arg-type]  # hashable, as said

    return kept


def forget_all() -> None:
    """Forget what is known of all things; whoever asks again waits for the analysis again."""
    for forget in _forget:
        forget()
