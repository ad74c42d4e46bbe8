"""Plannings, one at a time: a question to the planner, then its plans taken up by every job.  Pure."""

from dataclasses import dataclass

from tensile_db.worker.messages import JobId, PlanningId


@dataclass(frozen=True, slots=True, kw_only=True)
class Planning:
    """A question put to the planner."""

    id: PlanningId
    candidates: tuple[JobId, ...]
    running: tuple[JobId, ...]
    #: Asks only whether the one candidate would fit alone.
    trial: bool


class Plannings:
    """The planning under way, and who has yet to take up the last plans.  Changed only by WorkerState."""

    def __init__(self) -> None:
        self.under_way: Planning | None = None
        #: Of jobs that have not yet taken up their newest plan: which planning it is of.
        self.rollout: dict[JobId, PlanningId] = {}
        self._begun = 0

    @property
    def may_begin(self) -> bool:
        """Whether none is under way, and the last one's plans are all taken up."""
        return self.under_way is None and not self.rollout

    def begin(
        self, *, candidates: tuple[JobId, ...], running: tuple[JobId, ...], trial: bool = False
    ) -> Planning:
        """Begin the next one and return it."""
        self.under_way = Planning(id=self.new_id(), candidates=candidates, running=running, trial=trial)
        return self.under_way

    def new_id(self) -> PlanningId:
        """Return an id that no planning or improvement has had."""
        self._begun += 1
        return PlanningId(self._begun)

    def close(self, planning: PlanningId) -> Planning | None:
        """Close the one under way and return it; None if it is another."""
        closed = self.under_way
        if closed is None or closed.id != planning:
            return None
        self.under_way = None
        return closed

    def hand_out(self, job: JobId, planning: PlanningId) -> None:
        """Let a job have a plan to take up."""
        self.rollout[job] = planning

    def take_up(self, job: JobId, planning: PlanningId) -> bool:
        """Let a job have taken up its newest plan; False: it has a newer one, or none."""
        if self.rollout.get(job) != planning:
            return False
        del self.rollout[job]
        return True

    def forget(self, job: JobId) -> None:
        """Wait no longer for a job."""
        self.rollout.pop(job, None)
