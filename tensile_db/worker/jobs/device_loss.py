"""What becomes of a worker whose device failed: it ends, and its jobs go on with the next one.

A GPU that has failed once answers every later call of the process with the same error, whichever job calls.
The job that meets it first is told so and fails; whether it was the cause nobody knows.  The others would
fail for nothing.  They are left as they are, and taken over by the worker that the supervisor starts.
"""

import os
import threading
from collections.abc import Callable

#: EX_IOERR of sysexits.h.
_DEVICE_LOST = 74


class DeviceLoss:
    """One worker's.  Safe for all threads."""

    def __init__(self, end_process: Callable[[], None] = lambda: os._exit(_DEVICE_LOST)) -> None:
        """end_process: takes no leave of anybody, since threads may hang in the driver."""
        self._end_process = end_process
        self._lock = threading.Lock()
        self._is_met = False

    def meet(self) -> bool:
        """Return whether the caller's job is the first to meet the loss."""
        with self._lock:
            is_first, self._is_met = not self._is_met, True
            return is_first

    def end(self) -> None:
        """End the worker, once the first job's end is written."""
        self._end_process()
