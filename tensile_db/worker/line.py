"""The line of jobs that wait for device memory, and what their rows say of it.  Pure."""

from collections.abc import Sequence

from tensile_db.worker import waiting
from tensile_db.worker.held import HeldJob
from tensile_db.worker.messages import HoldJob, JobId


class Line:
    """Whether the first one waits until memory is given back, and everyone else behind it.

    Changed only by WorkerState, which knows who is in line.
    """

    def __init__(self) -> None:
        #: The first in line, known to fit alone but not beside what runs; None: nobody waits for an end.
        self.held_head: HeldJob | None = None

    def hold(self, line: Sequence[HeldJob], reason: str) -> list[HoldJob]:
        """Let the first one wait, for this reason, and the others behind it; line: in their order."""
        self.held_head = line[0]
        held = [_hold(line[0], reason)]
        held += [_hold(job, waiting.behind(line[0].id)) for job in line[1:]]
        return [instruction for instruction in held if instruction is not None]

    def join(self, job: HeldJob) -> list[HoldJob]:
        """Let a job come into line."""
        if self.held_head is None:
            return []
        if job.rank < self.held_head.rank:
            # A new head of the line, which may fit where the old one did not.
            self.held_head = None
            return []
        held = _hold(job, waiting.behind(self.held_head.id))
        return [] if held is None else [held]

    def leave(self, job: JobId) -> None:
        """Let a job out of the line, if it is in it."""
        if self.held_head is not None and self.held_head.id == job:
            self.held_head = None

    def look_again(self) -> None:
        """Let the first one be tried: memory was given back, or another is first now."""
        self.held_head = None

    def is_held(self, line: Sequence[HeldJob]) -> bool:
        """Whether the first of this line waits for memory, as does everyone behind it."""
        return self.held_head is not None and bool(line) and line[0] is self.held_head


def _hold(job: HeldJob, reason: str) -> HoldJob | None:
    """Return what tells the job's row why it waits; None: it says so."""
    if job.wait_reason == reason:
        return None
    job.wait_reason = reason
    return HoldJob(job=job.id, wait_reason=reason)
