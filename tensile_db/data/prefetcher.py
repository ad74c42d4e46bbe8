"""Prepares the next batches while the device computes."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

#: Batches prepared ahead: enough to ride out a slow one, and little memory.
DEPTH = 2


class Prefetcher(Generic[T]):
    """Iterates over `make()` in a thread of its own; what it raises is raised to the one who asks.

    To be closed, at the latest when the reader is done with it; then the thread has ended.
    """

    def __init__(self, make: Callable[[], Iterator[T]], depth: int = DEPTH) -> None:
        self._make = make
        self._ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
        self._closing = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._fill, name="tensile-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        if self._ended:
            raise StopIteration
        item, error = self._ready.get()
        if error is not None:
            self._ended = True
            raise error
        if item is None:
            self._ended = True
            raise StopIteration
        return item

    def close(self) -> None:
        """End the thread; may be called twice."""
        self._closing.set()
        self._ended = True
        while self._thread.is_alive():
            # The thread may be waiting for room.
            with_room = not self._ready.empty()
            if with_room:
                self._ready.get()
            self._thread.join(0.01)

    def _fill(self) -> None:
        try:
            for item in self._make():
                if not self._put((item, None)):
                    return
            self._put((None, None))
        except BaseException as error:  # noqa: BLE001  # whoever asks for the next batch must hear of it
            self._put((None, error))

    def _put(self, item: tuple[T | None, BaseException | None]) -> bool:
        while not self._closing.is_set():
            try:
                self._ready.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False
