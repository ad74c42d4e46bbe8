"""Better plans of running jobs, looked for one at a time while nobody waits for a plan.  Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from tensile_db.worker.messages import JobId, PlanningId


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """A better plan that is looked for."""

    id: PlanningId
    job: JobId


class Improvements:
    """The one under way, and the jobs that are still to have one.  Changed only by WorkerState."""

    def __init__(self) -> None:
        self.under_way: Improvement | None = None
        #: In the order in which they are to be had.
        self.wanted: tuple[JobId, ...] = ()

    def want(self, jobs: Iterable[JobId]) -> None:
        """Want one for these jobs, whose plans are the newest, and for no others."""
        self.wanted = tuple(jobs)

    def begin(self, planning: PlanningId) -> Improvement:
        """Begin the next one that is wanted and return it."""
        self.under_way = Improvement(id=planning, job=self.wanted[0])
        return self.under_way

    def close(self, planning: PlanningId) -> JobId | None:
        """Close the one under way and return its job; None if it was called off."""
        closed = self.under_way
        if closed is None or closed.id != planning:
            return None
        self.forget(closed.job)
        return closed.job

    def call_off(self) -> None:
        """Have no use for the one under way, which is still wanted: plans are made for all."""
        self.under_way = None

    def forget(self, job: JobId) -> None:
        """Want none for a job any more."""
        self.wanted = tuple(each for each in self.wanted if each != job)
        if self.under_way is not None and self.under_way.job == job:
            self.under_way = None
