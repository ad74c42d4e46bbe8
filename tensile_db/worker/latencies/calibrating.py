"""Measures a device's op latencies into the catalog, and learns models from all that was measured of it.

Samples are kept as they come: whoever is interrupted goes on with the next probe.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Engine

from tensile_db.catalog import latency_models
from tensile_db.errors import TensileError
from tensile_db.latency.training import Learned
from tensile_db.scheduler.plan import DeviceSpec
from tensile_db.worker.config import WorkerConfig
from tensile_db.worker.devices.names import is_cuda
from tensile_db.worker.latencies import known
from tensile_db.worker.latencies.measuring import Measuring
from tensile_db.worker.latencies.measuring_process import Finished, KindDone, Learn, Measure, Measured

#: Of the sequence of probes, and of the networks' first weights.
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a calibration has come."""

    #: "measuring" or "learning".
    phase: str
    #: Of 1.
    share: float
    detail: str


class Calibration:
    """A calibration of one device, in slices; `interrupt` may be called by any thread."""

    def __init__(
        self,
        engine: Engine,
        config: WorkerConfig,
        *,
        hardware: str,
        spec: DeviceSpec,
        seconds: float,
        fresh: bool = False,
        on_progress: Callable[[Progress], object] = lambda progress: None,
    ) -> None:
        """seconds: to measure; learning takes some more.

        fresh: what was measured of this hardware before is forgotten, as soon as there is something new.
        """
        self._engine = engine
        # The process that measures knows no database, and needs no rates.
        # A GPU's memory is the worker's that calibrates while it is idle; the process takes what is free.
        memory_nbytes = None if is_cuda(config.device) else config.memory_nbytes
        self._config = dataclasses.replace(config, dsn="", calibrate=False, memory_nbytes=memory_nbytes)
        self._hardware = hardware
        self._spec = spec
        self._seconds = seconds
        self._forgets = fresh
        self._left_s = seconds
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._under_way: Measuring | None = None
        self._should_stop: Callable[[], bool] = lambda: False
        #: How many were measured.
        self.samples = 0

    def interrupt(self) -> None:
        """Have should_stop asked now: what is under way ends at once if it says so."""
        with self._lock:
            if self._under_way is not None and self._should_stop():
                self._under_way.stop()

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> dict[str, Learned] | None:
        """Go on, and return what is learned by kind; None where it was stopped, to be gone on with.

        should_stop: having said so once, it says so for as long as this runs.
        Raises TensileError where nothing can be measured.
        """
        with self._lock:
            self._should_stop = should_stop
        try:
            if self._left_s > 0:
                self._measure()
            return None if should_stop() else self._learn()
        finally:
            with self._lock:
                self._under_way = None

    def _measure(self) -> None:
        first = 0
        if not self._forgets:
            with self._engine.begin() as conn:
                first = latency_models.next_probe(conn, self._hardware)
        began_s, left_s = None, self._left_s
        measuring = self._begin(Measuring(Measure(config=self._config, first=first, seed=SEED)))
        # A probe may take long: the time is over when it is over.
        timer = threading.Timer(left_s, measuring.stop)
        timer.daemon = True
        try:
            for answer in measuring.answers():
                if began_s is None:
                    # What the process takes to start measures nothing.
                    began_s = time.monotonic()
                    timer.start()
                self._left_s = left_s - (time.monotonic() - began_s)
                if isinstance(answer, Measured):
                    self._keep(answer)
        finally:
            timer.cancel()
            measuring.stop()
        if self._should_stop():
            self._left_s = left_s if began_s is None else left_s - (time.monotonic() - began_s)
        else:
            self._left_s = 0.0
            self._tell()

    def _keep(self, measured: Measured) -> None:
        with self._engine.begin() as conn:
            if self._forgets and measured.samples:
                latency_models.forget(conn, self._hardware)
            known.add_samples(conn, self._hardware, measured.probe, measured.samples)
        self._forgets = self._forgets and not measured.samples
        self.samples += len(measured.samples)
        self._tell()

    def _tell(self) -> None:
        share = min(1.0, 1 - self._left_s / self._seconds)
        self._on_progress(Progress(phase="measuring", share=share, detail=f"{self.samples} samples"))

    def _learn(self) -> dict[str, Learned] | None:
        with self._engine.begin() as conn:
            samples = tuple(known.read_samples(conn, self._hardware))
        learning = self._begin(Measuring(Learn(samples=samples, device=self._spec, seed=SEED)))
        try:
            for answer in learning.answers():
                match answer:
                    case KindDone(done=done, of=of):
                        self._on_progress(
                            Progress(phase="learning", share=done / of, detail=f"{done} of {of} kinds of ops")
                        )
                    case Finished(learned=learned):
                        with self._engine.begin() as conn:
                            known.replace_models(conn, self._hardware, learned)
                        return learned
        finally:
            learning.stop()
        if not self._should_stop():
            raise TensileError("learning latencies broke off", hint="Its errors are above.")
        return None

    def _begin(self, measuring: Measuring) -> Measuring:
        with self._lock:
            self._under_way = measuring
            # Whoever asks from now on finds it under way.
            if self._should_stop():
                measuring.stop()
        return measuring
