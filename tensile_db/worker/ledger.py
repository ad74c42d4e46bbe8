"""Who may hold how much of the device's memory, and the change from one set of plans to the next.  Pure.

A job's reservation is what nobody else may be given.  A target is a plan on its way to a job: one that
shrinks the job is handed out at once and frees memory when the job has adopted it; one that makes the job
grow, or lets it start, is handed out when there is room, and reserves at once.  So the sum of the
reservations never exceeds the memory, whenever the jobs reach their boundaries.
"""

from dataclasses import dataclass

from tensile_db.worker.messages import JobId, PlanningId


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A plan on its way to a job."""

    job: JobId
    planning: PlanningId
    budget_nbytes: int


class Ledger:
    """Reservations and targets by job; every change keeps `validate` true."""

    def __init__(self, *, memory_nbytes: int) -> None:
        self.memory_nbytes = memory_nbytes
        self._reserved: dict[JobId, int] = {}
        self._targets: dict[JobId, Target] = {}
        self._handed_out: set[JobId] = set()

    @property
    def reserved_nbytes(self) -> int:
        """Memory promised to all jobs, in bytes."""
        return sum(self._reserved.values())

    @property
    def rolling_out(self) -> bool:
        """Some job has not yet taken up its target."""
        return bool(self._targets)

    def reserved_for(self, job: JobId) -> int:
        """Memory promised to a job, in bytes."""
        return self._reserved.get(job, 0)

    def target_of(self, job: JobId) -> Target | None:
        """The plan on its way to a job."""
        return self._targets.get(job)

    def aim(self, target: Target) -> None:
        """Set a job's target; `hand_out` gives it out in its time."""
        assert target.job not in self._targets, "the last target has not been taken up"
        assert 0 <= target.budget_nbytes <= self.memory_nbytes
        self._targets[target.job] = target

    def hand_out(self, order: list[JobId]) -> list[Target]:
        """Return the targets for which there is room now, shrinking ones first, then in the order given."""
        handed_out = []
        for job in sorted(order, key=lambda job: self._growth_nbytes(job) > 0):
            target = self._targets.get(job)
            if target is None or job in self._handed_out:
                continue
            growth_nbytes = max(self._growth_nbytes(job), 0)
            if self.reserved_nbytes + growth_nbytes > self.memory_nbytes:
                continue
            self._reserved[job] = self.reserved_for(job) + growth_nbytes
            self._handed_out.add(job)
            handed_out.append(target)
        return handed_out

    def adopt(self, job: JobId, planning: PlanningId) -> None:
        """Count a job's handed out target as taken up; anything else is late news, and ignored."""
        target = self._targets.get(job)
        if target is not None and target.planning == planning and job in self._handed_out:
            self._reserved[job] = target.budget_nbytes
            self.forget_target(job)

    def forget_target(self, job: JobId) -> None:
        """Call a target off; what it reserved stays reserved, for the job may have taken it up already."""
        self._targets.pop(job, None)
        self._handed_out.discard(job)

    def free(self, job: JobId) -> int:
        """Take back all that a job has, which is over; return its reservation in bytes."""
        self.forget_target(job)
        return self._reserved.pop(job, 0)

    def validate(self) -> None:
        """Assert that no more is promised than there is, and every handed out plan is covered."""
        assert self.reserved_nbytes <= self.memory_nbytes, "more memory is promised than there is"
        assert all(nbytes >= 0 for nbytes in self._reserved.values())
        assert self._handed_out <= set(self._targets)
        for job in self._handed_out:
            assert self.reserved_for(job) >= self._targets[job].budget_nbytes

    def _growth_nbytes(self, job: JobId) -> int:
        target = self._targets.get(job)
        return 0 if target is None else target.budget_nbytes - self.reserved_for(job)
