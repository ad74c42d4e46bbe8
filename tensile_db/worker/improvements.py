"""Better plans of running jobs, and better lanes, looked for one at a time while nobody waits.  Pure."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from tensile_db.scheduler.sharing.share import Share
from tensile_db.worker.messages import ImprovementMade, JobId, PlanningId


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """Something better that is looked for, or was found and is yet to be handed out."""

    id: PlanningId
    #: One job, for a better plan; all that run, for better lanes.
    jobs: tuple[JobId, ...]
    #: What jobs may hold with what was found; None: nothing was yet.
    shares: tuple[tuple[JobId, Share], ...] | None = None
    #: The jobs of these for which still better plans may be found.
    improvable: tuple[JobId, ...] = ()


class Improvements:
    """The one under way, and what is still to be improved.  Changed only by WorkerState."""

    def __init__(self) -> None:
        self.under_way: Improvement | None = None
        #: As of an Improvement, what is looked for next first.
        self.wanted: tuple[tuple[JobId, ...], ...] = ()

    def want(
        self, jobs: Iterable[JobId], *, changed: Collection[JobId], in_lanes: tuple[JobId, ...] = ()
    ) -> None:
        """Want better plans of these jobs and of no others.

        changed: of which jobs another plan or share is in force, so that what is found for them is of no use.
        in_lanes: all that run, if better lanes are wanted; first, for plans are made for lanes.
        """
        asked = self.under_way
        if asked is not None and (len(asked.jobs) > 1 or asked.jobs[0] in changed):
            self.under_way = None
        together = (in_lanes,) if len(in_lanes) > 1 else ()
        self.wanted = (*together, *((job,) for job in jobs))

    def begin(self, planning: PlanningId) -> Improvement:
        """Begin the next one that is wanted and return it."""
        self.under_way = Improvement(id=planning, jobs=self.wanted[0])
        self.wanted = self.wanted[1:]
        return self.under_way

    def found(self, event: ImprovementMade) -> None:
        """Take in what was found, unless it was called off."""
        asked = self.under_way
        if asked is not None and asked.id == event.planning:
            self.under_way = replace(asked, shares=event.shares, improvable=event.improvable)

    def found_nothing(self, planning: PlanningId) -> None:
        """Take in that there is nothing better."""
        if self.under_way is not None and self.under_way.id == planning:
            self.under_way = None

    def take(self) -> Improvement | None:
        """Return the one that was found, once."""
        found = self.under_way
        if found is None or found.shares is None:
            return None
        self.under_way = None
        return found

    def handed_out(self, found: Improvement) -> None:
        """Want better plans of the jobs for which those that are handed out were made at once."""
        # Lanes that are still to be improved are so with these plans, too.
        others = tuple(each for each in self.wanted if len(each) > 1 or each[0] not in found.jobs)
        self.wanted = (*others, *((job,) for job in found.improvable))

    def forget(self, job: JobId) -> None:
        """Want nothing better for a job any more, nor lanes with it."""
        self.wanted = tuple(each for each in self.wanted if job not in each)
        if self.under_way is not None and job in self.under_way.jobs:
            self.under_way = None

    def validate(self, running: Collection[JobId], may_come: Collection[JobId]) -> None:
        """Assert what holds between any two events; may_come: who runs, or is about to by a plan."""
        assert self.under_way is None or all(job in running for job in self.under_way.jobs)
        assert all(job in may_come for jobs in self.wanted for job in jobs)
