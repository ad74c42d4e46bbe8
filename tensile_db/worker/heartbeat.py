"""Tells the catalog that the worker and its jobs are alive, from a thread that does nothing else.

So a long op, a long planning or a long iteration never costs a lease.  In between it keeps the device's row
fresh while there is something to tell; a worker with nothing to do writes at its heartbeats alone.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from tensile_db.catalog import leases, workers
from tensile_db.catalog.workers import DeviceUse
from tensile_db.worker.asked import events_of
from tensile_db.worker.devices.device import Device
from tensile_db.worker.messages import Event, JobId, StopAsked, StopReason

log = logging.getLogger(__name__)

#: Signs of life in the time of one lease.
_BEATS_A_LEASE = 4

#: While jobs run, tensile.devices is no older than this.
_DEVICE_EVERY_S = 1.0


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
        shared_nbytes: Callable[[], int],
        post: Callable[[Event], None],
    ) -> None:
        """attempts: the jobs held at present, with their attempts; post: takes what was learned of them.

        shared_nbytes: what their shares of the device take.
        """
        self._engine = engine
        self._worker = worker
        self._device = device
        self._interval_s = lease_s / _BEATS_A_LEASE
        self._attempts = attempts
        self._shared_nbytes = shared_nbytes
        self._post = post
        #: As tensile.devices has it.
        self._told: DeviceUse | None = None
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
        beat_at = time.monotonic() + self._interval_s
        while not ended:
            ended = self._ended.wait(min(_DEVICE_EVERY_S, max(0.0, beat_at - time.monotonic())))
            # The last beat tells that the device is free.
            beats = ended or time.monotonic() >= beat_at
            if beats:
                beat_at = time.monotonic() + self._interval_s
            try:
                if beats:
                    self._beat()
                else:
                    self._tell_device()
            except DBAPIError as error:
                # The next one opens a new connection; a lease that has run out is noticed then.
                log.warning("worker %s missed a heartbeat: %s", self._worker, error.orig)
                # Not every second while the database is away.
                self._ended.wait(max(0.0, beat_at - time.monotonic()))

    def _tell_device(self) -> None:
        """Write how the device is used, unless nothing runs and the row says so already."""
        memory = self._device.memory
        told = self._told
        if (
            not self._attempts()
            and told is not None
            and (told.used_nbytes, told.peak_nbytes) == (memory.used_nbytes, memory.peak_nbytes)
            and told.shared_nbytes == self._shared_nbytes()
        ):
            return
        use = self._use()
        with self._engine.begin() as conn:
            workers.write_use(conn, self._worker, use)
        self._told = use

    def _use(self) -> DeviceUse:
        memory = self._device.memory
        return DeviceUse(
            used_nbytes=memory.used_nbytes,
            peak_nbytes=memory.peak_nbytes,
            shared_nbytes=self._shared_nbytes(),
            utilization=self._device.utilization(),
            others_nbytes=self._device.others_nbytes(),
        )

    def _beat(self) -> None:
        use = self._use()
        with self._engine.begin() as conn:
            workers.pulse(conn, self._worker, use)
            pulse = leases.pulse(conn, worker=self._worker, attempts=self._attempts())
        self._told = use
        for job in pulse.lost:
            self._post(StopAsked(job=JobId(job), reason=StopReason.LEASE_LOST))
        for event in events_of(pulse.asked):
            self._post(event)
