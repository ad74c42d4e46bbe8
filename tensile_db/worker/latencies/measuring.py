"""Has probes measured and models learned in a child process, and takes what it says."""

import logging
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator

from tensile_db.errors import TensileError
from tensile_db.worker.latencies.measuring_process import Answer, Begun, Measure, Measured, Order

log = logging.getLogger(__name__)

#: Not `-m`: the module would be __main__ there, and its answers of types unknown here.
_PROGRAM = "from tensile_db.worker.latencies.measuring_process import main; main()"


class Measuring:
    """One order and the process, or processes, that carry it out.  `stop` may be called by any thread."""

    def __init__(self, order: Order) -> None:
        """Starts nothing yet."""
        self._order = order
        self._lock = threading.Lock()
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """End the process at once; the answers end, too."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def answers(self) -> Iterator[Answer]:
        """Yield what the process says; where a probe kills it, another goes on with the next probe.

        Raises TensileError where it dies of anything else than `stop` or a probe.
        """
        order = self._order
        while True:
            under_way: int | None = None
            for answer in self._run(order):
                match answer:
                    case Begun(probe=number):
                        under_way = number
                    case Measured():
                        under_way = None
                yield answer
            if self._stopped or not isinstance(order, Measure):
                return
            if under_way is None:
                raise TensileError(
                    "the process that measures latencies ended unasked", hint="Its errors are above."
                )
            log.warning("probe %s killed the process that measured it, and is left out", under_way)
            yield Measured(probe=under_way, samples=())
            order = Measure(config=order.config, first=under_way + 1, seed=order.seed)

    def _run(self, order: Order) -> Iterator[Answer]:
        with self._lock:
            if self._stopped:
                return
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            try:
                pickle.dump(order, process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
                process.stdin.flush()
                while True:
                    answer: Answer = pickle.load(process.stdout)  # noqa: S301  # written by our own child
                    yield answer
            except (OSError, EOFError, pickle.UnpicklingError):
                # It has said all, or was killed.
                return
            finally:
                process.kill()
                try:
                    process.stdin.close()
                except BrokenPipeError:
                    log.debug("the child took no notice of the order")
