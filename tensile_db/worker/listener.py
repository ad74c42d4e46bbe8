"""Wakes the controller when a job is submitted or something is asked of one: LISTEN, with polling behind it.

Notifications are lost while the connection is: a missed one costs a poll's interval, never a job.
"""

import logging
import os
import select
import threading
from collections.abc import Callable

import psycopg

from tensile_db.catalog.engine import connect

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 15.0


class Listener:
    """The thread that listens, on a connection of its own."""

    def __init__(self, *, dsn: str, poll_s: float, wake: Callable[[], None]) -> None:
        """wake: called for every notification and after every poll_s without one."""
        self._dsn = dsn
        self._poll_s = poll_s
        self._wake = wake
        self._ended = threading.Event()
        #: Read by the thread while it waits for notifications; written to when it is to end.
        self._end, self._bell = os.pipe()
        self._thread = threading.Thread(target=self._run, name="tensile-listener", daemon=True)

    def start(self) -> None:
        """Start listening."""
        self._thread.start()

    def stop(self) -> None:
        """Stop at once; once only."""
        self._ended.set()
        os.write(self._bell, b".")
        self._thread.join()
        os.close(self._bell)
        os.close(self._end)

    def _run(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ended.is_set():
            try:
                with connect(
                    self._dsn, application_name="tensile_db listener", autocommit=True
                ) as connection:
                    connection.execute("LISTEN tensile_jobs")
                    pause_s = _FIRST_PAUSE_S
                    self._listen(connection)
            except psycopg.Error as error:
                log.warning("no notifications for %.1f s: %s", pause_s, error)
                self._ended.wait(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _listen(self, connection: psycopg.Connection) -> None:
        while not self._ended.is_set():
            # What was submitted before the LISTEN is found by this first look, too.
            self._wake()
            ready, _, _ = select.select([self._end, connection.fileno()], [], [], self._poll_s)
            if connection.fileno() in ready:
                connection.pgconn.consume_input()
                while connection.pgconn.notifies() is not None:
                    pass
