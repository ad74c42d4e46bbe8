"""When jobs are claimed, and how many.  Pure."""

from collections.abc import Iterable

from tensile_db.worker.held import HeldJob
from tensile_db.worker.messages import Claim


class Claiming:
    """Whether there may be jobs to claim, and whether a claim is under way.  Changed only by WorkerState."""

    def __init__(self, max_jobs: int) -> None:
        self.under_way = False
        self._max_jobs = max_jobs
        self._look = True

    def look_again(self) -> None:
        """There may be jobs to claim now: let the next claim be made."""
        self._look = True

    def answered(self, *, found: bool) -> None:
        """Take the answer in: where some were found, there may be more."""
        self.under_way = False
        self._look = self._look or found

    def next_claim(self, held: Iterable[HeldJob]) -> Claim | None:
        """Begin the claim that is due and return it, None where none is; held: the jobs that take places."""
        if not self._look or self.under_way:
            return None
        self._look = False
        self.under_way = True
        room = self._max_jobs - sum(job.takes_a_place for job in held)
        return Claim(limit=room if room > 0 else self._max_jobs, only_serving=room <= 0)
