"""Watches how much device memory the worker's jobs hold while they run."""

import threading
import time
from types import TracebackType
from typing import NamedTuple

import psycopg

_EVERY_S = 0.25


class Sample(NamedTuple):
    """The device at one moment."""

    #: Since the watch began.
    at_s: float
    used_nbytes: int
    #: Jobs that run.
    jobs: int


class MemoryWatch:
    """Samples tensile.devices in a thread of its own, from entering the context to leaving it."""

    def __init__(self, dsn: str) -> None:
        """dsn: a role that may read tensile.devices and all jobs."""
        self._dsn = dsn
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.samples: list[Sample] = []

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        query = (
            "SELECT coalesce((SELECT used_nbytes FROM tensile.devices ORDER BY worker_id DESC LIMIT 1), 0),"
            " (SELECT count(*) FROM tensile.jobs WHERE state = 'running')"
        )
        begin_s = time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(_EVERY_S):
                row = connection.execute(query).fetchone()
                assert row is not None
                self.samples.append(Sample(time.monotonic() - begin_s, int(row[0]), int(row[1])))
