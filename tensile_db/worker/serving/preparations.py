"""Which jobs get ready to serve: a few at a time, those first that somebody waits for.  Safe for all threads.

After a worker's restart all models that the last one served come back at once, and a row is asked for of a
few of them only.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

#: Jobs that read weights and capture at a time: many models may be asked for at once.
_AT_A_TIME = 3
#: How often a job that waits for its turn to do so looks whether it is to stop.
_LOOK_UP_S = 0.1


@dataclass(frozen=True, eq=False)
class _Member:
    #: Which request has waited for its model the longest; None: nobody waits.
    oldest_request: Callable[[], int | None]


class Preparations:
    """Those of one worker."""

    def __init__(self, at_a_time: int = _AT_A_TIME) -> None:
        self._at_a_time = at_a_time
        self._changed = threading.Condition()
        #: In the order in which they came.
        self._waiting: list[_Member] = []
        self._begun: list[_Member] = []

    @contextmanager
    def one_of(self, oldest_request: Callable[[], int | None], check: Callable[[], None]) -> Iterator[None]:
        """Let a job prepare itself in its turn.

        The model goes first whose request is the oldest.  One that nobody waits for is prepared while there
        is none that somebody does, and no other like it: whoever asks next finds places.
        oldest_request: asked again and again, for somebody may come to wait; None: nobody does.
        check: asked while the job waits for its turn, may raise to stop.
        """
        member = _Member(oldest_request)
        with self._changed:
            self._waiting.append(member)
            try:
                while self._first() is not member:
                    self._changed.wait(_LOOK_UP_S)
                    check()
                self._begun.append(member)
            finally:
                self._waiting.remove(member)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._begun.remove(member)
                self._changed.notify_all()

    def look(self) -> None:
        """Look again at who waits for what: somebody has come."""
        with self._changed:
            self._changed.notify_all()

    def wait_until_nobody_waits(self) -> None:
        """Wait while a model that is not ready is waited for."""
        with self._changed:
            while any(member.oldest_request() is not None for member in [*self._waiting, *self._begun]):
                self._changed.wait(_LOOK_UP_S)

    def _first(self) -> _Member | None:
        """Return who may begin now."""
        if len(self._begun) >= self._at_a_time:
            return None
        asked = [
            (request, member) for member in self._waiting if (request := member.oldest_request()) is not None
        ]
        if asked:
            return min(asked, key=lambda found: found[0])[1]
        return self._waiting[0] if self._waiting and not self._begun else None
