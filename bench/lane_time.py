"""Where the time of jobs that share a device goes: computing, waiting, moving their state."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass

from tensile_db.worker.execution.executor import IterationResult
from tensile_db.worker.messages import JobId
from tensile_db.worker.turnstile import Turnstile


@dataclass(slots=True)
class Spent:
    """A job's time, in s.  What is moved ahead passes while another job computes."""

    ops: float = 0.0
    #: For the copies of its own plan, within its turns.
    stalled: float = 0.0
    #: For its turn, with nothing to do.
    waiting: float = 0.0
    moved_ahead: float = 0.0
    #: Within its turns.
    moved_in: float = 0.0
    #: Within its turns, and after them.
    moved_out: float = 0.0


class TimedTurnstile(Turnstile):
    """A turnstile that counts how long jobs wait, by job."""

    def __init__(self, *, memory_nbytes: int) -> None:
        super().__init__(memory_nbytes=memory_nbytes)
        self.spent: dict[JobId, Spent] = defaultdict(Spent)

    def take(
        self,
        job: JobId,
        *,
        left_ns: int,
        give_up: Callable[[], bool],
        approach: Callable[[], None] | None = None,
    ) -> bool:
        """See Turnstile."""
        spent, begin_s = self.spent[job], time.perf_counter()
        ahead_s = spent.moved_ahead

        def timed() -> None:
            assert approach is not None
            approach_s = time.perf_counter()
            approach()
            spent.moved_ahead += time.perf_counter() - approach_s

        taken = super().take(job, left_ns=left_ns, give_up=give_up, approach=approach and timed)
        spent.waiting += time.perf_counter() - begin_s - (spent.moved_ahead - ahead_s)
        return taken

    def count(self, job: JobId, begin_s: float, taken_s: float, result: IterationResult) -> None:
        """Count an iteration: asked for at `begin_s`, ready to run at `taken_s`, over now."""
        spent = self.spent[job]
        elapsed_s, stalled_s = result.elapsed_ns / 1e9, result.stall_ns / 1e9
        spent.ops += elapsed_s - stalled_s
        spent.stalled += stalled_s
        # What `take` has counted is no move within the turn.
        spent.moved_in += taken_s - begin_s
        spent.moved_out += time.perf_counter() - taken_s - elapsed_s

    def report(self) -> dict[int, dict[str, float]]:
        """Return what each job spent, by job."""
        for spent in self.spent.values():
            spent.moved_in -= spent.waiting + spent.moved_ahead
        return {
            int(job): {what: round(took_s, 2) for what, took_s in asdict(spent).items()}
            for job, spent in sorted(self.spent.items())
        }
