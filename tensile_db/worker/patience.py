"""How long a worker leaves jobs to others that are theirs.  Pure: told the time, it keeps none.

A worker may look alive and take nothing: it is suspended, or its connection hangs.  Who lets a job pass for
the grace time is passed over by this worker until its next sign of life, so that jobs which are submitted
one after another do not each wait for it.
"""

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

#: At the very least; what counts is the next look after it.
GRACE_S = 1.0

T = TypeVar("T", bound=Hashable)


class Since(Generic[T]):
    """Since when something has been seen at every look."""

    def __init__(self) -> None:
        self._since_s: dict[T, float] = {}

    def look(self, seen: Iterable[T], *, now_s: float, for_s: float) -> set[T]:
        """Take a look in; return what has been seen for so long."""
        self._since_s = {thing: self._since_s.get(thing, now_s) for thing in seen}
        return {thing for thing, since_s in self._since_s.items() if now_s - since_s >= for_s}


class Patience:
    """What one worker has seen the others leave."""

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        #: Jobs, each with the worker that should take it.
        self._left: Since[tuple[int, int]] = Since()
        #: Who is passed over, and the sign of life after which that happened.
        self._slow: dict[int, object] = {}

    def passed_over(self, beats: Mapping[int, object]) -> set[int]:
        """Return the workers that nothing is left to; beats: the last sign of life of each that is alive."""
        self._slow = {
            worker: beat for worker, beat in self._slow.items() if worker in beats and beats[worker] == beat
        }
        return set(self._slow)

    def see(self, left: Iterable[tuple[int, int]], beats: Mapping[int, object], *, now_s: float) -> bool:
        """Take a look in: jobs that wait, each with the worker that should take it.

        Returns whether somebody has let one pass for too long, and is passed over from now on.
        """
        slow = {worker for _, worker in self._left.look(left, now_s=now_s, for_s=self._grace_s)}
        self._slow |= {worker: beats[worker] for worker in slow}
        return bool(slow)
