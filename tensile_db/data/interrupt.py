"""Ends a statement that runs for long, or waits for a lock, when its job is told to stop."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import psycopg

#: Between two looks at whether to stop.
_INTERVAL_S = 0.25
#: How long the server may take to accept the request to cancel; then it is asked anew.
_CANCEL_TIMEOUT_S = 5.0


class Interrupt:
    """While the block runs, `check` is called in another thread; what it raises, the block raises."""

    def __init__(self, connection: psycopg.Connection[Any], check: Callable[[], None]) -> None:
        self._connection = connection
        self._check = check
        self._done = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._watch, name="tensile-interrupt", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()
        if self._error is not None and isinstance(error, psycopg.errors.QueryCanceled):
            raise self._error from error

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            try:
                self._check()
            except Exception as error:  # noqa: BLE001  # it is raised by the thread that reads
                self._error = error
                break
        # A request that arrives between two statements is lost, so it is made until the block has ended.
        while not self._done.is_set():
            try:
                self._connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
            except psycopg.Error:
                return  # the connection is lost, which the reading thread meets as well
            self._done.wait(_INTERVAL_S)
