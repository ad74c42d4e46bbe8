"""What a worker's serving jobs share."""

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tensile_db.worker.serving.forward_steps import ForwardSteps
from tensile_db.worker.serving.postman import Postman
from tensile_db.worker.serving.preparations import Preparations

#: Plans because of another use of models are made no more often than this.
_USE_PAUSE_S = 5.0


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
    preparations: Preparations = field(default_factory=Preparations)
    #: Prepares batch sizes while nobody waits; one thread, for capturing is for one at a time anyway.
    background: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="tensile-batch-sizes")
    )

    def close(self) -> None:
        """End its threads; the jobs are over, the planner still answers."""
        self.background.shutdown(cancel_futures=True)
        self.postman.stop()
