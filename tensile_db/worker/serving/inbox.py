"""Where a served model's rows wait, ready to go forward, until its job has a turn.  Safe for all threads."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensile_db.catalog.serving import Answer, Request
from tensile_db.errors import TensileError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A request whose features are made."""

    request: Request
    #: float32, of the shape of the network's input.
    features: npt.NDArray[np.float32]


class Inbox:
    """One model's, on one worker."""

    def __init__(
        self,
        model: int,
        make: Callable[[Request], npt.NDArray[np.float32] | None],
        wake: Callable[[], None],
    ) -> None:
        """make: a request's features, None for a NULL; raises TensileError.

        wake: tells that a row is there.
        """
        self.model = model
        #: When the newest request came, by time.monotonic().
        self.last_used_s = time.monotonic()
        self._make = make
        self._wake = wake
        self._lock = threading.Lock()
        self._rows: deque[Row] = deque()
        self._closed = False

    def unused_ns(self) -> int:
        """Return for how long nobody has asked for the model."""
        return int(1e9 * (time.monotonic() - self.last_used_s))

    def oldest_request(self) -> int | None:
        """Return which request's row was decoded first of those that wait; None: no row waits."""
        with self._lock:
            return self._rows[0].request.id if self._rows else None

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, request: Request) -> Answer | None:
        """Make a request's features and let them wait; return an answer where that is all."""
        self.last_used_s = time.monotonic()
        try:
            features = self._make(request)
        except TensileError as error:
            return Answer.of_error(request.id, error)
        if features is None:
            return Answer(request=request.id)
        with self._lock:
            if self._closed:
                return None
            self._rows.append(Row(request=request, features=features))
        self._wake()
        return None

    def take(self, limit: int) -> list[Row]:
        """Return the rows that wait, the oldest first, and forget them."""
        with self._lock:
            return [self._rows.popleft() for _ in range(min(limit, len(self._rows)))]

    def close(self) -> None:
        """Take nothing more; who waits is answered by whoever serves the model next."""
        with self._lock:
            self._closed = True
            self._rows.clear()
