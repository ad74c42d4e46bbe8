"""Better plans of running jobs, looked for one at a time while nobody waits for a plan.  Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.messages import JobId, PlanningId


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """A better plan that is looked for, or was found and is yet to be handed out."""

    id: PlanningId
    job: JobId
    #: What the job may hold with the plan that was found; None: none was yet.
    share: Share | None = None


class Improvements:
    """The one under way, and the jobs that are still to have one.  Changed only by WorkerState."""

    def __init__(self) -> None:
        self.under_way: Improvement | None = None
        #: The one looked for next first.
        self.wanted: tuple[JobId, ...] = ()

    def want(self, jobs: Iterable[JobId], *, changed: Collection[JobId]) -> None:
        """Want one for these jobs and for no others.

        changed: of which jobs another plan or share is in force, so that what is found for them is of no use.
        """
        asked = self.under_way
        if asked is not None and asked.job in changed:
            self.under_way = None
        self.wanted = tuple(jobs)

    def begin(self, planning: PlanningId) -> Improvement:
        """Begin the next one that is wanted and return it."""
        self.under_way = Improvement(id=planning, job=self.wanted[0])
        return self.under_way

    def found(self, planning: PlanningId, share: Share | None) -> None:
        """Take an answer in, unless it was called off; no share: there is no better plan."""
        asked = self.under_way
        if asked is not None and asked.id == planning:
            self.forget(asked.job)
            if share is not None:
                self.under_way = replace(asked, share=share)

    def take(self) -> Improvement | None:
        """Return the one that was found, once."""
        found = self.under_way
        if found is None or found.share is None:
            return None
        self.forget(found.job)
        return found

    def forget(self, job: JobId) -> None:
        """Want none for a job any more."""
        self.wanted = tuple(each for each in self.wanted if each != job)
        if self.under_way is not None and self.under_way.job == job:
            self.under_way = None
