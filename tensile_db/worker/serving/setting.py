"""What a worker's serving jobs share."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from tensile_db.worker.serving.forward_steps import ForwardSteps
from tensile_db.worker.serving.postman import Postman

#: Plans because of another use of models are made no more often than this.
_USE_PAUSE_S = 5.0

#: Jobs that read weights and capture at a time: many models may be asked for at once.
_AT_A_TIME = 3
#: How often a job that waits for its turn to do so looks whether it is to stop.
_LOOK_UP_S = 0.1


class Pacer:
    """Lets something happen now and then.  Safe for all threads."""

    def __init__(self, pause_s: float = _USE_PAUSE_S) -> None:
        self._pause_s = pause_s
        self._lock = threading.Lock()
        #: When it happened last.
        self.last_s = -math.inf

    def is_time(self) -> bool:
        """Whether it may happen now; if so, not again for a while."""
        with self._lock:
            now = time.monotonic()
            if now < self.last_s + self._pause_s:
                return False
            self.last_s = now
            return True


@dataclass(frozen=True, kw_only=True)
class ServingSetting:
    """Of one worker."""

    postman: Postman
    #: Rows that go forward together, at most.
    batch_size: int
    #: A model that nobody asked for so long is served no more.
    idle_s: float
    steps: ForwardSteps = field(default_factory=ForwardSteps)
    use: Pacer = field(default_factory=Pacer)
    #: Prepares batch sizes while nobody waits; one thread, for capturing is for one at a time anyway.
    background: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="tensile-batch-sizes")
    )

    _preparing: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(_AT_A_TIME)
    )

    @contextmanager
    def preparing(self, check: Callable[[], None]) -> Iterator[None]:
        """Let few jobs prepare themselves at a time; check: asked while one waits, may raise to stop."""
        while not self._preparing.acquire(timeout=_LOOK_UP_S):
            check()
        try:
            yield
        finally:
            self._preparing.release()

    def close(self) -> None:
        """End its threads; the jobs are over, the planner still answers."""
        self.background.shutdown(cancel_futures=True)
        self.postman.stop()
