"""Tells the catalog that the worker and its jobs are alive, from a thread that does nothing else.

So a long op, a long planning or a long iteration never costs a lease.
"""

import logging
import threading
from collections.abc import Callable, Mapping

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import jobs, workers
from tensile_db.catalog.workers import DeviceUse
from tensile_db.worker.device import Device
from tensile_db.worker.messages import JobId, StopAsked, StopReason

log = logging.getLogger(__name__)

#: Signs of life in the time of one lease.
_BEATS_A_LEASE = 4


class Heartbeat:
    """The thread that renews leases."""

    def __init__(
        self,
        *,
        engine: Engine,
        worker: int,
        device: Device,
        lease_s: float,
        attempts: Callable[[], Mapping[int, int]],
        post: Callable[[StopAsked], None],
    ) -> None:
        """attempts: the jobs held at present, with their attempts; post: takes what was learned of them."""
        self._engine = engine
        self._worker = worker
        self._device = device
        self._interval_s = lease_s / _BEATS_A_LEASE
        self._attempts = attempts
        self._post = post
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tensile-heartbeat", daemon=True)

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until the last beat is over."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            # The last beat tells that the device is free.
            ended = self._ended.wait(self._interval_s)
            try:
                self._beat()
            except DBAPIError as error:
                # The next beat opens a new connection; a lease that has run out is noticed then.
                log.warning("worker %s missed a heartbeat: %s", self._worker, error.orig)

    def _beat(self) -> None:
        memory = self._device.memory
        use = DeviceUse(
            used_nbytes=memory.used_nbytes,
            peak_nbytes=memory.peak_nbytes,
            utilization=self._device.utilization(),
        )
        with self._engine.begin() as conn:
            workers.pulse(conn, self._worker, use)
            pulse = jobs.pulse(conn, worker=self._worker, attempts=self._attempts())
        for job in pulse.lost:
            self._post(StopAsked(job=JobId(job), reason=StopReason.LEASE_LOST))
        for job in pulse.cancel_requested:
            self._post(StopAsked(job=JobId(job), reason=StopReason.CANCELLED))
