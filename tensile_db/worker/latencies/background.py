"""Calibrates a worker's device while it has nothing to do, once for its hardware.

A thread that waits for idle moments; a job that comes ends the measuring process before it begins itself.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import psycopg
from sqlalchemy.exc import DBAPIError

from tensile_db.errors import TensileError
from tensile_db.latency.training import Learned
from tensile_db.worker.handover import Held, RunJob
from tensile_db.worker.latencies.calibrating import Calibration
from tensile_db.worker.messages import Event

log = logging.getLogger(__name__)


class BackgroundCalibration:
    """The thread that calibrates.  `stop` ends it."""

    def __init__(self, calibration: Calibration, *, is_needed: Callable[[], bool], idle_s: float) -> None:
        """is_needed: asked once, in the thread; idle_s: how long no job must have been there."""
        self._calibration = calibration
        self._is_needed = is_needed
        self._idle_s = idle_s
        self._changed = threading.Condition()
        self._jobs = 0
        self._jobs_begun = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="tensile-calibration", daemon=True)

    def start(self) -> None:
        """Start waiting for idle moments."""
        self._thread.start()

    def stop(self) -> None:
        """End it at once, started or not; what was measured is kept."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._calibration.interrupt()
        if self._thread.ident is not None:
            self._thread.join()

    def around(self, run_job: RunJob) -> RunJob:
        """Return what runs a job and has nothing measured meanwhile."""

        def run(held: Held, post: Callable[[Event], None]) -> None:
            with self._interrupted():
                run_job(held, post)

        return run

    @contextmanager
    def _interrupted(self) -> Iterator[None]:
        with self._changed:
            self._jobs += 1
            self._jobs_begun += 1
            self._changed.notify_all()
        self._calibration.interrupt()
        try:
            yield
        finally:
            with self._changed:
                self._jobs -= 1
                self._changed.notify_all()

    def _run(self) -> None:
        try:
            if not self._is_needed():
                return
            log.info("latencies of this hardware are unknown: they are measured while there are no jobs")
            while (idle_since := self._wait_until_idle()) is not None:
                learned = self._calibration.run(should_stop=partial(self._is_over, idle_since))
                if learned is not None:
                    log.info("latencies are learned: %s", _summary(learned))
                    return
        except (DBAPIError, psycopg.Error) as error:
            log.warning("latencies cannot be kept now, the worker's next start tries again: %s", error)
        except TensileError as error:
            log.error("latencies cannot be measured: %s", error.message)

    def _wait_until_idle(self) -> int | None:
        """Return the number of jobs so far when there has been none for a while; None: all is to end."""
        with self._changed:
            while not self._stopped:
                begun = self._jobs_begun
                self._changed.wait_for(partial(self._is_over, begun), self._idle_s)
                if self._jobs == 0 and not self._is_over(begun):
                    return begun
        return None

    def _is_over(self, idle_since: int) -> bool:
        return self._stopped or self._jobs_begun != idle_since


def _summary(learned: dict[str, Learned]) -> str:
    networks = sum(one.model.network is not None for one in learned.values())
    samples = sum(one.sample_count for one in learned.values())
    return f"{networks} models of {len(learned)} kinds of ops, from {samples} samples"
